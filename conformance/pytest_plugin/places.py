"""Where a claim's check lies, as pytest sees it: file and node id."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from conformance import TREE, catalogue
from conformance.catalogue import Claim


def file_of(claim: Claim) -> Path:
    return Path(os.path.realpath(TREE / _relative(claim)))


def claim_at(node_id: str) -> str | None:
    """The claim of a node id, whatever folder it starts from and with xdist's `@group`; None for any other test."""
    path, _, name = node_id.partition("@")[0].replace("\\", "/").partition("::")
    candidates = _by_file().get((path.rsplit("/", 1)[-1], name), {})
    for relative, claim_id in candidates.items():
        if f"/{path}".endswith(f"/{relative}") or f"/{relative}".endswith(f"/{path}"):
            return claim_id
    return None


class Reach:
    """Which checks pytest's arguments (or, without any, its `testpaths`) lead to."""

    def __init__(self, config: pytest.Config):
        self._targets = []
        for argument in config.args:
            path, _, name = argument.partition("::")
            self._targets.append((Path(os.path.realpath(config.invocation_params.dir / path)), name))

    def includes(self, claim: Claim) -> bool:
        file, own_name = file_of(claim), claim.check.partition(":")[2]
        return any((path == file or path in file.parents) and name in ("", own_name) for path, name in self._targets)


def _relative(claim: Claim) -> str:
    return claim.check.partition(":")[0].replace(".", "/") + ".py"


@cache
def _by_file() -> dict[tuple[str, str], dict[str, str]]:
    """(file name, function) -> path from the clone's root -> claim."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for claim in catalogue.claims().values():
        if claim.check:
            relative = _relative(claim)
            key = relative.rsplit("/", 1)[-1], claim.check.partition(":")[2]
            found.setdefault(key, {})[relative] = claim.id
    return found
