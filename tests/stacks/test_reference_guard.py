"""The reference stack's guard: exactly the vetted pairs; and what claims make of planners that lack answers."""

from __future__ import annotations

import msgspec
import pytest

from conformance import catalogue, errors, geometry
from conformance.context import Context
from conformance.gate.runner import evaluate
from conformance.gate.settings import Settings, resolve
from conformance.stacks.protocols import KernelChoice, KnownBackends, PlanOutcome, PlanRequest, StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target

PAIR = ("FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass")
FLASH = geometry.load("deepseek-v4-flash")


def _plan(tp=3, capability=(12, 0), pair=PAIR, model=FLASH, vetted=(((12, 0), *PAIR),), **more):
    planner = ReferenceStack(StackOptions(vetted=vetted)).planner()
    return planner.plan(PlanRequest(model, tp, capability, *pair, **more))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"capability": (12, 1)},
            "not vetted for FLASHINFER_MLA_SPARSE_DSV4 attention with flashinfer_cutlass MoE on ",
        ),
        ({"capability": None}, "on no CUDA"),
        ({"pair": ("FLASH_ATTN", "flashinfer_cutlass")}, "not vetted for FLASH_ATTN"),
        ({"expert_parallel": True}, "expert parallelism is on"),
        ({"pair": (PAIR[0], "deep_gemm_mega_moe")}, "MegaMoE"),
    ],
)
def test_refused_with_a_reason(how, words):
    outcome = _plan(**how)
    assert (outcome.outcome, outcome.padding, outcome.axes) == ("refused", "refused", None)
    assert words in outcome.message


@pytest.mark.parametrize(
    ("how", "padding"),
    [
        ({}, "planned"),
        ({"tp": 2, "capability": (9, 0)}, "nothing"),
        ({"tp": 2, "expert_parallel": True}, "nothing"),
        ({"vetted": None, "capability": None}, "planned"),
        ({"model": geometry.load("gpt-oss-120b")}, "planned"),
    ],
)
def test_accepted(how, padding):
    outcome = _plan(**how)
    assert (outcome.outcome, outcome.padding) == ("accepted", padding)


@pytest.mark.parametrize(("tp", "lacking"), [(4, True), (3, False)])
def test_alignment_alone_needs_no_virtual_tp(tp, lacking):
    """V4.1-Flash at TP4: 2304 / 4 = 576 channels, which FP8 blocks pad to 640: any vLLM may do that."""
    run = resolve(Settings(profile="sm120", geometry="deepseek-v4.1-flash", tp=str(tp)))
    assert bool(catalogue.get("plan.guard.pairs").not_applicable(run.target)) is lacking
    outcome = _plan(tp=tp, capability=(9, 0), model=run.target.geometry)
    assert outcome.outcome == ("accepted" if lacking else "refused")


def test_force_shows_the_plan_behind_the_guard():
    outcome = _plan(capability=(12, 1), force=True)
    assert (outcome.outcome, outcome.forced, outcome.axes["heads"].per_rank) == ("refused", True, 24)


@pytest.mark.parametrize(
    ("options", "capability", "vetted"),
    [
        ({"emulate": "sm120"}, (12, 0), 2),
        ({"emulate": "sm90"}, None, None),  # it vets no pair: no guard to emulate
        ({"profile": "cpu"}, None, None),
        ({"profile": "sm90", "stack": "vllm"}, (9, 0), None),
    ],
)
def test_what_a_run_hands_to_stack_and_claims(options, capability, vetted):
    run = resolve(Settings(**options))
    assert run.target.capability == capability
    found = run.stack_options.vetted
    assert (None if found is None else len(found)) == vetted


class _Planner:
    """Says what a test wants it to say."""

    def __init__(self, outcome=None, choice=None):
        self._outcome, self._choice = outcome, choice

    def plan(self, request):
        return self._outcome

    def backends(self):
        return KnownBackends(("FLASH_ATTN",), ("marlin",))

    def guards(self, requests):
        return [self._outcome for _ in requests]

    def kernel(self, request, widths):
        return self._choice


class _OnlyPlan:
    def plan(self, request):
        return PlanOutcome("accepted")


def _status(claim, planner, tp=3, model=FLASH, **changes):
    fields = {"vetted": (((12, 0), *PAIR),), "arithmetic": "mxfp8"} | changes
    target = Target(model, tp, PAIR[1], PAIR[0], (12, 0), (128,), (128,), **fields)
    stack = ReferenceStack(StackOptions())
    status, reason, _ = evaluate(catalogue.get(claim), stack, Context(target, planner, stack.loader()))
    return str(status), reason


@pytest.mark.parametrize(
    "claim",
    [c.id for c in catalogue.claims().values() if c.group in ("plan.guard", "plan.draft", "plan.kernel")],
)
def test_a_planner_that_answers_plans_alone(claim):
    """INCOMPLETE: never a pass, and no error of ours."""
    status, reason = _status(claim, _OnlyPlan())
    assert status == "not-supported" and "answers no such questions" in reason


def test_a_stack_that_knows_no_vetted_backend():
    unknown = PlanOutcome("refused", "no such backend", padding="unknown-backend")
    status, reason = _status("plan.guard.vetted", _Planner(unknown))
    assert (status, "knows none of the vetted pairs" in reason) == ("not-supported", True)
    assert _status("plan.guard.megamoe", _Planner(unknown))[0] == "pass"


#: Where padding is needed, what a planner's answer is worth.
REFUSED = {"accepted": "fail", "refused": "pass", "ignored": "fail"}
ODD = msgspec.structs.replace(FLASH, name="odd", intermediate=2080)  # 65 scale groups


@pytest.mark.parametrize("model", [FLASH, ODD])
@pytest.mark.parametrize(("outcome", "due"), [("accepted", "pass"), ("refused", "fail"), ("ignored", "fail")])
def test_expert_parallelism_cuts_no_expert(model, outcome, due):
    """TP2 would cut a scale group of 2080 channels; dealt out whole they need no padding, and no refusal."""
    planner = _Planner(PlanOutcome(outcome, "why"))
    assert _status("plan.guard.expert_parallel", planner, 2, model, expert_parallel=True)[0] == due
    assert _status("plan.guard.expert_parallel", planner, 3, model, expert_parallel=True)[0] == REFUSED[outcome]
    own = ReferenceStack(StackOptions(vetted=(((12, 0), *PAIR),))).planner()
    assert _status("plan.guard.expert_parallel", own, 2, model, expert_parallel=True)[0] == "pass"
    assert _plan(2, (10, 0), model=model, expert_parallel=True).outcome == "accepted"


def test_expert_parallelism_that_no_profile_lists_is_asked_only_where_axes_stay_to_pad():
    claim = catalogue.get("plan.guard.expert_parallel")

    def why(tp):
        return claim.not_applicable(Target(ODD, tp, PAIR[1], PAIR[0], (12, 0), (128,), (128,)))

    assert "expert parallelism cuts no expert" in why(2) and not why(3)


@pytest.mark.parametrize(("padding", "due"), [("no-layer", "pass"), ("refused", "pass"), ("nothing", "fail")])
def test_a_later_check_is_no_answer_of_the_padding_layer(padding, due):
    """A stack without any such layer refuses by its general check, and ignores nothing."""

    class OwnPair(_Planner):
        def backends(self):
            return KnownBackends((PAIR[0],), (PAIR[1],))

    planner = OwnPair(PlanOutcome("refused", "64 is not divisible by 3", padding=padding))
    assert _status("plan.guard.silent", planner)[0] == due


@pytest.mark.parametrize(
    ("choice", "backend", "activation"),
    [
        (KernelChoice("x", ["A", "B"], "B", scheme="mxfp8"), "pass", "pass"),
        (KernelChoice("x", ["A", "B"], "B", scheme="bf16"), "pass", "fail"),
        (KernelChoice("x", ["A"], "MARLIN", scheme="bf16"), "fail", "fail"),
        (KernelChoice("x", ["A"], refused="no such device"), "fail", "not-supported"),
        (KernelChoice("x", ["A"]), "fail", "not-supported"),
    ],
)
def test_the_oracles_choice(choice, backend, activation):
    planner = _Planner(choice=choice)
    assert _status("plan.backend", planner)[0] == backend
    assert _status("plan.kernel.activation", planner)[0] == activation


def test_a_layer_that_cannot_be_built_proves_nothing():
    choice = KernelChoice("x", ["A"], "A", roundings={704: 768}, hidden=4096, notes=["no layer of 800"])
    status, reason = _status("plan.kernel.rounding", _Planner(choice=choice))
    assert status == "not-supported" and "800" in reason
    with pytest.raises(errors.NotSupported):
        stack = ReferenceStack(StackOptions())
        target = Target(FLASH, 3, PAIR[1], PAIR[0], (12, 0), (128,), (128,))
        catalogue.get("plan.kernel.rounding").function()(
            stack, Context(target, _Planner(choice=choice), stack.loader())
        )
