"""gpt-oss's routed experts on a real vLLM (CONFORMANCE_VLLM_PYTHON): two experts of the real geometry.

2880 channels are 90 scale groups. TP4 gives 22.5 to a rank: 23, 23, 23 and 21 are due, so that no group is cut.
"""

from __future__ import annotations

import os

import msgspec
import pytest

from conformance import geometry
from conformance.context import Context
from conformance.faults import loader as faults
from conformance.faults.seams import FaultyLoader
from conformance.stacks.protocols import ExpertsRequest
from conformance.target import Target
from references import plan
from suites.loader import slices

PYTHON = os.environ.get("CONFORMANCE_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="CONFORMANCE_VLLM_PYTHON names no interpreter with vllm")
EXPERTS = 2
W13, W2 = ("w13_weight", "w13_weight_scale"), ("w2_weight", "w2_weight_scale")
#: Elements of the intermediate axis at which each rank's slice begins.
STARTS = {1: [0], 2: [0, 1440], 4: [0, 736, 1472, 2208], 8: [384 * rank for rank in range(8)]}
MODEL = geometry.load("gpt-oss-120b")
FEW = msgspec.structs.replace(MODEL, experts=EXPERTS)


def _context(stack, tp: int, fault=None, backend: str = "marlin") -> Context:
    target = Target(FEW, tp, backend, None, None, (128, 32), (256, 32))
    loader = stack.loader() if fault is None else FaultyLoader(stack.loader(), fault)
    return Context(target, stack.planner(), loader)


@pytest.mark.parametrize("tp", STARTS)
def test_every_rank_holds_whole_scale_groups(stack, tp):
    context = _context(stack, tp)
    assert STARTS[tp] == [rank * plan.routed_intermediate(2880, tp).per_rank for rank in range(tp)]
    for parameter in (*W13, *W2):
        for check in (slices.offsets, slices.tails, slices.partition):
            found = check(context, parameter)
            assert found.ok, found.summary
    for weight, scale in (W13, W2):
        assert slices.alignment(context, weight, scale).ok
    for part in ("shard", "expert"):
        assert not slices.identity(context, (*W13, *W2), part)[0]


def test_gate_and_up_rows_stay_in_turn(stack):
    """What is shown as two halves is one tensor with gate and up in turn: W3's rows reach no row of W1."""
    layer = stack.loader().open_experts(ExpertsRequest(FEW, 4, 1, "cpu", EXPERTS, None))
    rows, cols = FEW.checkpoint_shape("w13_weight_scale")
    try:
        layer.fill("w13_weight_scale", 255)
        for shard, value in (("w1", 1), ("w3", 3)):
            source = layer.allocate(rows * cols).fill_(value).view(rows, cols)
            layer.load("w13_weight_scale", shard, 0, source)
        gate, up = layer.read("w13_weight_scale", 0)[:, :cols].chunk(2)
        assert gate.shape == (736, cols) and bool((gate == 1).all()) and bool((up == 3).all())
    finally:
        layer.close()


@pytest.mark.parametrize(
    ("fault", "parameter", "check"),
    [
        (faults.pairs_as_rows, "w13_weight", slices.offsets),
        (faults.unit_blind(*W13, *W2), "w2_weight_scale", slices.offsets),
        (faults.floor_division, "w2_weight_scale", slices.partition),
        (faults.garbage_tail, "w13_weight", slices.tails),
    ],
)
def test_faults_are_seen(stack, fault, parameter, check):
    found = check(_context(stack, 4, fault), parameter)
    assert not found.ok and found.findings


def test_the_oracle_is_asked_as_for_experts_with_biases(stack, stock):
    from conformance.stacks.protocols import PlanRequest

    choice = stack.planner().kernel(PlanRequest(MODEL, 4, (12, 0), None, "b12x"), [736])
    assert "bias" in choice.refused
