"""Limits are written from a stack whose loader claims pass, and from nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import catalogue
from conformance.e2e import limits
from conformance.e2e.calibrate import Largest, proved
from conformance.errors import UsageError

CLAIMS = [claim.id for claim in catalogue.claims().values() if claim.group == "loader.moe"]


def _run(folder: Path, tp: int, version: str = "1", failing: int = 0) -> Path:
    claims = [
        {"id": name, "group": "loader.moe", "status": "fail" if n < failing else "pass"}
        for n, name in enumerate(CLAIMS)
    ]
    folder.mkdir()
    (folder / "verdict.json").write_text(json.dumps({"tp": tp, "claims": claims}))
    (folder / "manifest.json").write_text(json.dumps({"stacks": {"vllm": {"version": version}}}))
    return folder


def _records(*sizes: int) -> list[Any]:
    return [SimpleNamespace(about=SimpleNamespace(stack="vllm", version="1", tp=tp)) for tp in sizes]


def test_a_loader_that_passes_at_every_size_is_written_down(tmp_path):
    runs = [_run(tmp_path / "a", 3), _run(tmp_path / "b", 2)]
    assert proved(runs, _records(1, 2, 3)) == [f"TP{tp}: {len(CLAIMS)} claims of loader.moe pass" for tp in (2, 3)]


@pytest.mark.parametrize(
    ("words", "run"),
    [
        ("no --loader RUN at TP3", {"tp": 2}),
        (f"{len(CLAIMS) - 1} of {len(CLAIMS)} claims of loader.moe pass", {"tp": 3, "failing": 1}),
        ("of vllm 2; all of them, of vllm 1", {"tp": 3, "version": "2"}),
    ],
)
def test_anything_less_calibrates_nothing(tmp_path, words, run):
    with pytest.raises(UsageError, match=words):
        proved([_run(tmp_path / "run", **run)], _records(3))


def test_a_folder_that_is_no_run_is_a_wrong_call(tmp_path):
    with pytest.raises(UsageError, match="no run of a gate"):
        proved([tmp_path], _records(3))


def test_one_largest_gap_for_all_kinds_of_pairs():
    found = Largest()
    found.add("parity", gap=0.25)
    found.add("schedule", p99=0.1, gap=0.0625)
    found.pool_gaps("parity", "schedule")
    assert found.values == {"parity": {"gap": 0.25}, "schedule": {"p99": 0.1, "gap": 0.25}}


def test_every_limit_that_is_shipped_says_what_it_comes_from():
    """Two checkpoints at least, against full precision at every size, and a loader run at each size above 1."""
    for one in limits.known(limits._OWN):
        sizes = set(re.findall(r"TP(\d+)", " ".join(one.pairs)))
        assert len({pair.partition(":")[0] for pair in one.pairs}) >= 2, one.words
        alone = {tuple(re.findall(r"^(.*): TP(\d+) batched", pair)) for pair in one.pairs} - {()}
        assert {size for found in alone for _, size in found} == sizes
        assert {found.partition(":")[0] for found in one.loader} == {f"TP{size}" for size in sizes - {"1"}}
