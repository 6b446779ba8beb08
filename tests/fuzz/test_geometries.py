"""A stack against the references: the reference stack holds, planted faults shrink to what they break first."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from conformance.errors import StackRefused, StackTimeout
from conformance.faults import loader as faults
from conformance.faults.seams import FaultyLoader, LoaderFault
from conformance.fuzz.geometries import Case, Judge
from conformance.fuzz.search import PROFILES, Profile, search
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import open_stack

CASES = st.builds(Case, st.sampled_from(range(1, 17)), st.integers(1, 96), st.sampled_from(["flashinfer_cutlass"]))
QUICK = Profile(60, None, True)


def _judge(fault: LoaderFault | None = None) -> Judge:
    stack = open_stack(StackOptions(emulate={"intermediate": 128, "hidden": 128}))
    spoil = (lambda loader: FaultyLoader(loader, fault)) if fault else (lambda loader: loader)
    return Judge(lambda backend: stack, None, spoil)


def test_the_reference_stack_holds():
    judge = _judge()
    found = search(CASES, judge, QUICK)
    assert found.smallest is None and set(judge.statuses.values()) == {"right"} and len(judge.statuses) > 30


@pytest.mark.parametrize(
    ("fault", "smallest", "claim"),
    [
        (faults.dropped_rank, (1, 1), "loader.w13_scale.partition"),
        (faults.floor_division, (2, 1), "loader.w13_scale.tails"),
        (faults.last_byte_lost, (1, 1), "loader.w2.partition"),
        (faults.reversed_ranks, (2, 1), "loader.w13_scale.offsets"),
        (faults.unit_blind("w2_weight_scale"), (2, 2), "loader.w2_scale.tails"),
    ],
)
def test_planted_faults_shrink(fault, smallest, claim):
    found = search(CASES, _judge(fault), QUICK)
    assert found.smallest is not None and found.smallest[:2] == smallest
    assert claim in found.judged[found.smallest]


def test_a_fault_beyond_a_threshold_shrinks_to_the_threshold():
    """Wrong from TP3 and 7 scale groups on: exactly that is found."""

    def after(load):
        if load.parameter == "w2_weight_scale" and load.request.tp >= 3 and load.source.shape[1] >= 7:
            load.part[0, 0] ^= 1

    found = search(CASES, _judge(LoaderFault(after=after)), QUICK)
    assert found.smallest == (3, 7, "flashinfer_cutlass")
    assert "loader.w2_scale.offsets" in found.judged[found.smallest]


@pytest.mark.parametrize(("error", "outcome"), [(StackRefused("no"), "refused"), (StackTimeout("late"), "unproved")])
def test_what_cannot_be_measured_is_neither_right_nor_broken(error, outcome):
    class Loader:
        def open_experts(self, request):
            raise error

    stack = open_stack(StackOptions())
    judge = Judge(lambda backend: stack, None, lambda loader: Loader())
    case = Case(2, 3, "cpu")
    assert judge(case) == "" and judge.statuses == {case: outcome} and judge.reasons[case]


def test_profiles():
    assert PROFILES["dev"].seconds is not None and 2 * PROFILES["dev"].seconds < 30
    assert PROFILES["nightly"].seconds is None
