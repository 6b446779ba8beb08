"""Each fault of the guard seam changes what it says, by hand, and nothing else."""

from __future__ import annotations

import pytest

from conformance import catalogue
from conformance.context import Context
from conformance.faults import selftest
from conformance.faults.catalogue import FAULTS
from conformance.faults.remembered import RememberedPlanner
from conformance.faults.seams import FaultyPlanner
from conformance.gate.runner import evaluate
from conformance.stacks.protocols import Axis, PlanRequest, StackOptions
from conformance.stacks.reference import ReferenceStack

GUARDS = [name for name, fault in FAULTS.items() if fault.guard]
VETTED = (
    ((12, 0), "FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass"),
    ((12, 0), "B12X_MLA_SPARSE", "b12x"),
)
#: Claims that a fault does not name, and that rightly fail with it.
ALSO = {
    "guard-no-reason": {"plan.guard.expert_parallel", "plan.guard.megamoe"},
    "guard-no-error": {"plan.guard.platforms"},
    "guard-expert-parallel": {"plan.guard.megamoe"},
}
TARGET = selftest._target("reference", "flashinfer_cutlass")
STACK = ReferenceStack(StackOptions(emulate={"intermediate": 128, "hidden": 128}, arithmetic="mxfp8", vetted=VETTED))


def _ask(fault: str, attention: str, moe: str, capability=(12, 0), **more):
    request = PlanRequest(TARGET.geometry, 3, capability, attention, moe, **more)
    (answer,) = FaultyPlanner(STACK.planner(), guard=FAULTS[fault].guard).guards([request])
    return answer


def _context(fault: str) -> Context:
    planner = STACK.planner()
    return Context(TARGET, FaultyPlanner(planner, guard=FAULTS[fault].guard) if fault else planner, STACK.loader())


def _evidence(fault: str, claim: str):
    return catalogue.get(claim).function()(STACK, _context(fault))


@pytest.mark.parametrize(
    ("fault", "asked", "outcome", "padding"),
    [
        ("guard-vetted-refused", ("B12X_MLA_SPARSE", "b12x"), "refused", "refused"),
        ("guard-vetted-refused", ("FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass"), "accepted", "planned"),
        ("guard-any-attention", ("FLASH_ATTN", "b12x"), "accepted", "planned"),
        ("guard-any-attention", ("FLASH_ATTN", "marlin"), "refused", "refused"),
        ("guard-any-attention", ("FLASH_ATTN", "b12x", (12, 1)), "refused", "refused"),
        ("guard-family", ("FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass", (12, 1)), "accepted", "planned"),
        ("guard-family", ("FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass", (10, 0)), "refused", "refused"),
        ("guard-without-cuda", ("B12X_MLA_SPARSE", "b12x", None), "accepted", "planned"),
        ("guard-passed-over", ("B12X_MLA_SPARSE", "b12x", (10, 0)), "refused", "nothing"),
        ("guard-passed-over", ("B12X_MLA_SPARSE", "b12x", (12, 0)), "accepted", "planned"),
        ("guard-no-error", ("FLASH_ATTN", "marlin"), "ignored", "nothing"),
    ],
)
def test_answers(fault, asked, outcome, padding):
    answer = _ask(fault, *asked)
    assert (answer.outcome, answer.padding) == (outcome, padding)


def test_drafts():
    draft = _ask("draft-unguarded", "FLASH_ATTN", "marlin", draft=True)
    assert (draft.outcome, draft.padding) == ("refused", "planned")
    assert _ask("draft-unguarded", "FLASH_ATTN", "marlin").padding == "refused"
    pair = ("B12X_MLA_SPARSE", "b12x")
    assert _ask("draft-plan-differs", *pair, draft=True).axes["heads"] == Axis(16, 18, 6)
    assert _ask("draft-not-padded", *pair, draft=True).axes["routed"] == Axis(256, 256, 85)
    assert _ask("draft-refused", *pair, draft=True).outcome == "refused"


@pytest.mark.parametrize("fault", GUARDS)
def test_only_the_claims_that_name_it_say_so(fault):
    """Some answers are wrong for more than one claim: MegaMoE is asked with expert parallelism too."""
    context = _context(fault)
    plan = [c for c in catalogue.claims().values() if c.layer == "plan"]
    failed = {c.id for c in plan if evaluate(c, STACK, context)[0] == "fail"}
    named = set(FAULTS[fault].claims)
    assert named <= failed <= named | ALSO.get(fault, set())


def test_the_pair_is_named_in_the_summary():
    found = _evidence("guard-one-pair-too-many", "plan.guard.pairs")
    assert found.summary == (
        "1 kind of wrong answer; FLASHMLA_SPARSE_DSV4 attention with marlin MoE on 12.0: accepted; refused was due"
    )


def test_alike_answers_are_told_together():
    found = _evidence("guard-any-attention", "plan.guard.pairs")
    assert [f.where for f in found.findings] == [
        "any of 4 (FLASHINFER_MLA_SPARSE_DSV4, FLASHMLA_SPARSE_DSV4, FLASH_ATTN, TRITON_MLA) attention with b12x MoE "
        "on 12.0"
    ]


def test_what_an_unguarded_draft_looks_like():
    found = _evidence("draft-unguarded", "plan.draft.guard")
    assert "the draft is padded (the whole configuration is refused)" in found.summary
    assert found.findings[0].expected == "refused, and the draft not padded"


def test_widths_tell_the_roundings_apart():
    """The audit's 704 -> 768 does not: rounded to 128 and to 256 it is 768."""
    assert _evidence("", "plan.kernel.rounding").measured == {"96": 128, "288": 384, "hidden": 256}
    wrong = _evidence("kernel-rounds-less", "plan.kernel.rounding")
    assert (wrong.measured["288"], wrong.findings[-1].expected) == (288, "384")


def test_a_remembered_planner_asks_once_and_changes_nothing():
    class Counting:
        asked = 0

        def guards(self, requests):
            Counting.asked += len(requests)
            return STACK.planner().guards(requests)

    planner = RememberedPlanner(Counting())
    requests = [PlanRequest(TARGET.geometry, 3, (12, 0), a, m) for _, a, m in VETTED]
    first, second = planner.guards(requests), planner.guards([*requests, requests[0]])
    assert Counting.asked == 2
    assert [o.outcome for o in second] == ["accepted"] * 3 and second[:2] == first
