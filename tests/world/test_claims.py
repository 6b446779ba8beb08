"""The claims moe.world.*: ranks are named, other sizes, ranks in turn, and a run that goes on after a rank's death."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.faults import selftest
from conformance.faults.catalogue import FAULTS
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks import registry
from conformance.stacks.protocols import StackOptions
from conformance.target import Target
from conformance.world.ranks import Worlds

TINY = geometry.load("deepseek-v4-tiny")
OPTIONS = StackOptions(emulate={"intermediate": 128, "hidden": 128}, call_timeout=60)
STACK = registry.open_stack("reference", OPTIONS)


def _target(tp: int) -> Target:
    return Target(TINY, tp, "flashinfer_cutlass", None, None, (128,), (128,))


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    found = Worlds("reference", OPTIONS)
    yield found
    found.close()


def _judge(name: str, context: Context):
    return evaluate(catalogue.get(name), STACK, context)


def _clean(worlds: Worlds, tp: int = 3) -> Context:
    return Context(_target(tp), STACK.planner(), STACK.loader(), {"moe": STACK.moe}, world=worlds.of)


def _planted(worlds: Worlds, fault: str) -> Context:
    bench = SimpleNamespace(stack=STACK, planner=STACK.planner(), target=_target(3), worlds=worlds, files=None)
    return selftest._context(bench, FAULTS[fault])


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("name", ["moe.world.exact", "moe.world.sum"])
def test_sizes(worlds, name, tp):
    status, reason, evidence = _judge(name, _clean(worlds, tp))
    assert (status, reason) == (Status.PASS, "")
    assert f"together, {tp} processes, on CPUs, gloo" in evidence.method


@pytest.mark.parametrize(
    ("fault", "claim", "rank", "words"),
    [
        ("moe-rank1-scales-off", "moe.world.exact", 1, "rank 1, expert 0, W2 row"),
        ("moe-rank2-w2-off", "moe.world.exact", 2, "nothing answers"),
        ("moe-rank1-scales-off", "moe.world.sum", 1, "times the bound"),
        ("moe-rank2-w2-off", "moe.world.sum", 2, "times the bound"),
        ("moe-reduce-rank-missing", "moe.world.sum", 0, "this is the sum without rank 2"),
        ("moe-reduce-rank-twice", "moe.world.sum", 0, "this is the sum with rank 1 counted twice"),
        ("moe-reduce-not-read", "moe.world.sum", 1, "this is rank 1's own part"),
        ("moe-reduce-truncated", "moe.world.sum", 0, "are none of BF16's"),
        ("moe-reduce-unsteady", "moe.world.sum", 0, "other bits the second time"),
    ],
)
def test_the_rank_is_named(worlds, fault, claim, rank, words):
    status, reason, evidence = _judge(claim, _planted(worlds, fault))
    assert status is Status.FAIL
    assert evidence.findings[0].rank == rank
    assert words in reason


def test_a_rank_that_dies_is_a_crash_and_the_run_goes_on(worlds):
    status, reason, evidence = _judge("moe.world.sum", _planted(worlds, "moe-rank-dies"))
    assert (status, evidence) == (Status.CRASH, None)
    assert "rank 1 of 3" in reason and "exit 0" in reason
    assert _judge("moe.world.sum", _clean(worlds))[0] is Status.PASS


@pytest.mark.parametrize("name", ["moe.world.exact", "moe.world.sum"])
def test_in_turn(name):
    """Where no processes can be had the ranks run in turn, and the evidence says so."""
    context = Context(_target(3), STACK.planner(), STACK.loader(), {"moe": STACK.moe})
    status, _, evidence = _judge(name, context)
    assert status is Status.PASS
    assert "in turn, in one process" in evidence.method
    assert "in turn, in one process" in evidence.summary


@pytest.mark.parametrize(("tp", "words"), [(1, "one rank"), (16, "16 ranks, 8 processes at most")])
def test_why_in_turn(worlds, tp, words):
    assert _clean(worlds, tp).world.words == f"in turn, in one process ({words})"
