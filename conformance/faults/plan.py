"""Faults at the plan seam: an outcome with something wrong in it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from conformance.stacks.protocols import Axis, PlanOutcome


def wrong_axis(name: str) -> Callable[[PlanOutcome], PlanOutcome]:
    """One axis padded just enough for tp, without its alignment (or, where that is the same, one step too far)."""

    def fault(outcome: PlanOutcome) -> PlanOutcome:
        if outcome.axes is None or name not in outcome.axes:
            return outcome
        axis = outcome.axes[name]
        tp = axis.padded // axis.per_rank
        per_rank = -(-axis.original // tp)
        if per_rank == axis.per_rank:
            per_rank += 1
        wrong = Axis(axis.original, per_rank * tp, per_rank)
        return msgspec.structs.replace(outcome, axes=outcome.axes | {name: wrong})

    return fault


def padded_kv_head(outcome: PlanOutcome) -> PlanOutcome:
    heads = outcome.unpadded.get("kv_heads", 0)
    return msgspec.structs.replace(outcome, unpadded=outcome.unpadded | {"kv_heads": heads + 2})


def refused(outcome: PlanOutcome) -> PlanOutcome:
    return msgspec.structs.replace(outcome, outcome="refused", message="planted: this pair is not supported")


def ignored(outcome: PlanOutcome) -> PlanOutcome:
    return msgspec.structs.replace(outcome, outcome="ignored", axes=None)


def layers_differ(outcome: PlanOutcome) -> PlanOutcome:
    """The plan is right, and the layers are built with heads of their own."""
    if outcome.axes is None or "heads" not in outcome.axes:
        return outcome
    heads = outcome.axes["heads"]
    wrong = Axis(heads.original, 2 * heads.padded, 2 * heads.per_rank)
    return msgspec.structs.replace(outcome, built=outcome.axes | {"heads": wrong})
