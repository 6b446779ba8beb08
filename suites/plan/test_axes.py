"""The planned axes against the audit's formulas, one axis a claim."""

from __future__ import annotations

from conformance import expected
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import PlanOutcome, Stack
from conformance.suite import claim

_UNITS = {"heads": "heads", "groups": "groups", "routed": "channels", "shared": "channels", "vocab": "rows"}


def _plan(context: Context) -> PlanOutcome:
    """The plan that the stack made; if its guard refused or ignored the pair, the plan it makes without the guard."""
    outcome = context.plan()
    if outcome.axes is None:
        outcome = context.plan(force=True)
    if outcome.axes is None:
        padding = ", ".join(expected.needs_padding(context.geometry, context.target.tp))
        why = f"{padding} need padding at TP{context.target.tp}, and the stack makes no plan"
        raise NotSupported(f"{why}: {outcome.message or 'no virtual tensor parallelism'}")
    return outcome


def _axis(context: Context, name: str) -> Evidence:
    outcome = _plan(context)
    assert outcome.axes is not None
    due = expected.axes(context.geometry, context.target.tp, context.virtual)[name]
    got = outcome.axes.get(name)
    if got is None:
        raise NotSupported(f"the stack's {outcome.origin} does not tell its {name} axis: {'; '.join(outcome.notes)}")
    unit = _UNITS[name]
    told = [(outcome.origin, got)]
    if name in outcome.built:
        told.append(("layers built from it", outcome.built[name]))
    findings = [
        Finding(
            where=f"{name} axis, {label}, by the {origin}",
            expected=f"{want} {unit}",
            got=f"{have} {unit}",
            meaning=f"{due.original} over TP{context.target.tp} is {due.per_rank} a rank, {due.padded} in all",
        )
        for origin, axis in told
        for label, want, have in (
            ("checkpoint size", due.original, axis.original),
            ("padded global size", due.padded, axis.padded),
            ("size of one rank", due.per_rank, axis.per_rank),
        )
        if want != have
    ]
    checked = " and of the layers built from it" if name in outcome.built else ""
    how = " (made by force, round the stack's guard)" if outcome.forced else ""
    return Evidence(
        ok=not findings,
        summary=f"{name}: {got.original} -> {got.padded}, {got.per_rank} a rank, "
        f"read off the {outcome.origin}{checked}{how}",
        expected=[due.original, due.padded, due.per_rank],
        measured=[got.original, got.padded, got.per_rank],
        findings=findings,
        notes=outcome.notes,
    )


@claim("plan.axes.heads")
def heads(stack: Stack, context: Context) -> Evidence:
    return _axis(context, "heads")


@claim("plan.axes.groups")
def groups(stack: Stack, context: Context) -> Evidence:
    return _axis(context, "groups")


@claim("plan.axes.routed")
def routed(stack: Stack, context: Context) -> Evidence:
    return _axis(context, "routed")


@claim("plan.axes.shared")
def shared(stack: Stack, context: Context) -> Evidence:
    return _axis(context, "shared")


@claim("plan.axes.vocab")
def vocab(stack: Stack, context: Context) -> Evidence:
    return _axis(context, "vocab")


@claim("plan.axes.unpadded")
def unpadded(stack: Stack, context: Context) -> Evidence:
    """Axes that every rank holds whole: an axis that the stack does not tell is a failure to prove, not a pass."""
    outcome = _plan(context)
    due, got = context.geometry.unpadded, outcome.unpadded
    missing = sorted(set(due) - set(got))
    if missing:
        raise NotSupported(
            f"the stack's {outcome.origin} does not tell {', '.join(missing)}: {'; '.join(outcome.notes)}"
        )
    findings = [
        Finding(
            where=f"{name} axis",
            expected=str(size),
            got=str(got[name]),
            meaning="no plan may change this axis",
        )
        for name, size in due.items()
        if got[name] != size
    ]
    return Evidence(
        ok=not findings,
        summary=", ".join(f"{name} {got[name]}" for name in due),
        expected=due,
        measured={name: got[name] for name in due},
        findings=findings,
        notes=outcome.notes,
    )
