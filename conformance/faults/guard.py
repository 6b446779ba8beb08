"""Faults at the guard seam: answers of a planner that accepts, refuses or ignores what it should not.

Padding fits every one of them: they are planted where a clean stack's guard refuses or accepts by the vetted pairs.
"""

from __future__ import annotations

import msgspec

from conformance.faults.seams import GuardFault
from conformance.stacks.protocols import Axis, KernelChoice, PlanOutcome, PlanRequest

_replace = msgspec.structs.replace


def _accepted(outcome: PlanOutcome) -> PlanOutcome:
    return _replace(outcome, outcome="accepted", message="", padding="planned")


def _refused(outcome: PlanOutcome) -> PlanOutcome:
    return _replace(outcome, outcome="refused", message="planted: not supported", padding="refused", axes=None)


def _tensor_parallel(request: PlanRequest) -> bool:
    return not request.expert_parallel and not request.draft and "mega_moe" not in request.moe


def _vetted_refused(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    if _tensor_parallel(request) and request.moe == "b12x":
        return _refused(outcome)
    return outcome


def _any_attention(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    beside = _tensor_parallel(request) and request.moe == "b12x" and request.capability == (12, 0)
    return _accepted(outcome) if beside else outcome


def _one_pair_too_many(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    pair = (request.attention, request.moe, request.capability) == ("FLASHMLA_SPARSE_DSV4", "marlin", (12, 0))
    return _accepted(outcome) if pair and _tensor_parallel(request) else outcome


def _family(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    pair = (request.attention, request.moe) == ("FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass")
    return _accepted(outcome) if pair and request.capability == (12, 1) and _tensor_parallel(request) else outcome


def _without_cuda(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    pair = (request.attention, request.moe) == ("B12X_MLA_SPARSE", "b12x")
    return _accepted(outcome) if pair and request.capability is None and _tensor_parallel(request) else outcome


def _passed_over(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    if request.capability in (None, (9, 0), (10, 0)) and _tensor_parallel(request):
        return _replace(outcome, message="64 is not divisible by 3", padding="nothing")
    return outcome


def _no_error(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    if outcome.outcome == "refused" and request.moe == "marlin" and not request.draft:
        return _replace(outcome, outcome="ignored", message="", padding="nothing")
    return outcome


def _no_reason(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    return _replace(outcome, message="") if outcome.outcome == "refused" and not request.draft else outcome


def _expert_parallel(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    return _accepted(outcome) if request.expert_parallel and not request.draft else outcome


def _megamoe(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    mega = "mega_moe" in request.moe and request.expert_parallel and not request.draft
    return _accepted(outcome) if mega else outcome


def _draft_unguarded(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The whole configuration is refused all the same: by the target's guard."""
    return _replace(outcome, padding="planned") if request.draft else outcome


def _draft_refused(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    return _refused(outcome) if request.draft else outcome


def _draft_differs(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    if not request.draft or not outcome.axes or "heads" not in outcome.axes:
        return outcome
    size = outcome.axes["heads"].original
    per_rank = -(-size // request.tp)
    return _replace(outcome, axes=outcome.axes | {"heads": Axis(size, per_rank * request.tp, per_rank)})


def _draft_not_padded(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    if not request.draft or not outcome.axes:
        return outcome
    axes = {name: Axis(a.original, a.original, a.original // request.tp) for name, a in outcome.axes.items()}
    return _replace(outcome, axes=axes)


def _draft_unquantized(request: PlanRequest, schemes: dict[str, str]) -> dict[str, str]:
    if not request.draft:
        return schemes
    return {name: scheme if name == "routed experts" else "UnquantizedLinearMethod" for name, scheme in schemes.items()}


def _draft_experts_scheme(request: PlanRequest, schemes: dict[str, str]) -> dict[str, str]:
    return schemes | {"routed experts": "Fp8MoEMethod"} if request.draft else schemes


def _kernel_fallback(choice: KernelChoice) -> KernelChoice:
    return _replace(choice, backend="MARLIN") if choice.backend else choice


def _kernel_refuses(choice: KernelChoice) -> KernelChoice:
    return _replace(choice, backend="", scheme="", refused="planted: kernel does not support the device")


def _rounded(choice: KernelChoice, factor: float) -> KernelChoice:
    """Every width rounded to `factor` times the largest power of two that its clean roundings share."""
    step = min(width & -width for width in choice.roundings.values())
    other = max(1, int(step * factor))
    return _replace(choice, roundings={width: -(-width // other) * other for width in choice.roundings})


def _kernel_rounds_less(choice: KernelChoice) -> KernelChoice:
    return _rounded(choice, 1 / 8)


def _kernel_rounds_more(choice: KernelChoice) -> KernelChoice:
    return _rounded(choice, 8)


def _kernel_activation(choice: KernelChoice) -> KernelChoice:
    return _replace(choice, scheme="bf16" if choice.scheme == "mxfp8" else "mxfp8")


vetted_refused = GuardFault(answer=_vetted_refused)
any_attention = GuardFault(answer=_any_attention)
one_pair_too_many = GuardFault(answer=_one_pair_too_many)
family = GuardFault(answer=_family)
without_cuda = GuardFault(answer=_without_cuda)
passed_over = GuardFault(answer=_passed_over)
no_error = GuardFault(answer=_no_error)
no_reason = GuardFault(answer=_no_reason)
expert_parallel = GuardFault(answer=_expert_parallel)
megamoe = GuardFault(answer=_megamoe)
draft_unguarded = GuardFault(answer=_draft_unguarded)
draft_refused = GuardFault(answer=_draft_refused)
draft_differs = GuardFault(answer=_draft_differs)
draft_not_padded = GuardFault(answer=_draft_not_padded)
draft_unquantized = GuardFault(schemes=_draft_unquantized)
draft_experts_scheme = GuardFault(schemes=_draft_experts_scheme)
kernel_fallback = GuardFault(kernel=_kernel_fallback)
kernel_refuses = GuardFault(kernel=_kernel_refuses)
kernel_rounds_less = GuardFault(kernel=_kernel_rounds_less)
kernel_rounds_more = GuardFault(kernel=_kernel_rounds_more)
kernel_activation = GuardFault(kernel=_kernel_activation)
