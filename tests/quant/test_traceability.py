"""docs/nvfp4-contract-traceability.md names claims and faults that there are, and faults that those claims catch."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from conformance import TREE, catalogue
from conformance.faults.catalogue import FAULTS

_LINES = (Path(TREE) / "docs" / "nvfp4-contract-traceability.md").read_text().splitlines()
ROWS = [line.strip("|").split("|") for line in _LINES if line.startswith("|") and "`" in line.split("|")[2]]


@pytest.mark.parametrize(("item", "claims", "faults"), ROWS, ids=[row[0].strip() for row in ROWS])
def test_every_row_is_kept(item, claims, faults):
    named, planted = re.findall(r"`([^`]+)`", claims), re.findall(r"`([^`]+)`", faults)
    assert named and planted
    for pattern in named:
        assert any(fnmatchcase(claim, pattern) for claim in catalogue.claims()), pattern
    for fault in planted:
        assert any(fnmatchcase(claim, pattern) for claim in FAULTS[fault].claims for pattern in named), fault
