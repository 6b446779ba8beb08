"""Two workers: one of them runs all claims, and the controller judges."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import catalogue
from conformance.pytest_plugin import marks
from tests.pytest_plugin.conftest import SUITES, Session, with_check

pytest.importorskip("xdist")
pytest_plugins = ["pytester"]


def test_one_worker_runs_all_claims(process: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking, findings and the selection come out as without xdist."""
    own = tmp_path / "test_own.py"
    own.write_text("import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_own(n): pass\n")
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_STACK_CALLS", str(calls))
    left_out = ("--deselect", "suites/plan/test_axes.py::unpadded")
    outcome = process(SUITES, str(own), "--stack", "wrong", "-n", "2", *left_out)
    assert outcome.code == 1, outcome.text
    assert outcome.verdict["headline"] == f"NO-GO (scope: {len(with_check()) - 1} chosen claims)"
    assert outcome.statuses["plan.axes.heads"] == "fail"
    assert outcome.statuses["loader.w2.offsets"] == "blocked"
    assert [line["id"] for line in outcome.evidence()] == list(outcome.statuses)
    assert calls.read_bytes() == b"."  # planned once: by one worker
    passed = list(outcome.statuses.values()).count("pass") + 3
    assert f"1 failed, {passed} passed" in outcome.text
    assert "expected 8 heads, got 7 heads" in outcome.text


def test_worker_that_dies_costs_one_claim(process: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next worker goes on after it, and knows what had come before."""
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_STACK_CALLS", str(calls))
    outcome = process(SUITES, "--stack", "deadly", "-n", "1", "-k", "axes.heads or axes.vocab or loader.w2.tails")
    assert outcome.code == 1, outcome.text
    assert outcome.statuses == {"plan.axes.heads": "crash", "plan.axes.vocab": "pass", "loader.w2.tails": "blocked"}
    assert calls.read_bytes() == b".."  # the check that died did not run again


def test_scattering_is_refused(process: Session) -> None:
    outcome = process(SUITES, "--stack", "planner", "-n", "1", "--dist", "load")
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert "--dist load scatters the claims of one stack: use --dist loadgroup" in outcome.text


@pytest.mark.parametrize(
    ("claim", "stack", "layers", "group"),
    [
        ("moe.world.sum", "flashinfer", ("moe", "graph"), "conformance-ranks"),
        ("graph.world.fresh", "flashinfer", ("moe", "graph"), "conformance-ranks"),
        ("moe.tp3.reference", "flashinfer", ("moe", "graph"), "conformance"),
        ("moe.world.sum", "flashinfer", ("loader", "moe"), "conformance"),
        ("moe.world.sum", "reference", ("moe",), "conformance"),
    ],
)
def test_claims_of_all_ranks_have_a_worker_of_their_own_where_they_wait_for_no_loader(
    claim: str, stack: str, layers: tuple[str, ...], group: str
) -> None:
    run = SimpleNamespace(layers=layers, stacks=dict.fromkeys(layers, stack))
    asked: Any = SimpleNamespace(given={"stack": stack}, run=run)
    assert marks.group_of(catalogue.get(claim), asked) == group
