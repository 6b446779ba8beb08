"""Each plan fault changes what it says, by hand, and nothing else."""

from __future__ import annotations

import pytest

from conformance import geometry
from conformance.faults.catalogue import FAULTS
from conformance.faults.seams import FaultyPlanner
from conformance.stacks.protocols import Axis, PlanRequest, StackOptions
from conformance.stacks.reference import ReferenceStack

#: DeepSeek-V4-Flash at TP3: (original, padded, per rank) as the fault makes it
WRONG = {
    "plan-heads": ("heads", Axis(64, 66, 22)),
    "plan-groups": ("groups", Axis(8, 12, 4)),
    "plan-routed": ("routed", Axis(2048, 2049, 683)),
    "plan-shared": ("shared", Axis(2048, 2049, 683)),
    "plan-vocab": ("vocab", Axis(129280, 129282, 43094)),
}
RIGHT = {
    "heads": Axis(64, 72, 24),
    "groups": Axis(8, 9, 3),
    "routed": Axis(2048, 2112, 704),
    "shared": Axis(2048, 2304, 768),
    "vocab": Axis(129280, 129408, 43136),
}
UNPADDED = {"kv_heads": 1, "hidden_size": 4096, "experts": 256, "top_k": 6, "index_heads": 64}


def _plan(fault: str):
    request = PlanRequest(geometry.load("deepseek-v4-flash"), 3, (12, 0), None, "flashinfer_cutlass")
    planner = ReferenceStack(StackOptions()).planner()
    return FaultyPlanner(planner, FAULTS[fault].plan).plan(request) if fault else planner.plan(request)


def test_the_clean_plan():
    clean = _plan("")
    assert (clean.outcome, clean.axes, clean.unpadded) == ("accepted", RIGHT, UNPADDED)


@pytest.mark.parametrize("fault", WRONG)
def test_one_axis_and_no_other(fault):
    axis, wrong = WRONG[fault]
    found = _plan(fault)
    assert (found.outcome, found.axes, found.unpadded) == ("accepted", RIGHT | {axis: wrong}, UNPADDED)


def test_the_kv_head():
    found = _plan("plan-unpadded")
    assert (found.axes, found.unpadded) == (RIGHT, UNPADDED | {"kv_heads": 3})


def test_outcomes():
    refused, ignored = _plan("plan-refused"), _plan("plan-ignored")
    assert refused.outcome == "refused" and "planted" in refused.message
    assert (ignored.outcome, ignored.axes, ignored.message) == ("ignored", None, "")


def test_layers_of_their_own():
    found = _plan("plan-layers-differ")
    assert (found.outcome, found.axes, found.unpadded) == ("accepted", RIGHT, UNPADDED)
    assert found.built == RIGHT | {"heads": Axis(64, 144, 48)}


def test_every_plan_fault_is_here():
    # faults of guards, drafts and kernels: test_guard_faults.py
    others = {"plan-unpadded", "plan-refused", "plan-ignored", "plan-layers-differ"}
    assert {f.id for f in FAULTS.values() if f.plan} == {*WRONG, *others}
