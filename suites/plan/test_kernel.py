"""The kernel's side of the plan: which kernel the stack's own oracle gives, in which arithmetic, and how wide."""

from __future__ import annotations

from conformance import expected
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.geometry import SCALE_GROUP
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import KernelChoice, Stack
from conformance.suite import claim
from conformance.target import platform
from references import plan


def _widths(context: Context) -> list[int]:
    """A rank's share, and one scale group above the next multiple of 256, which 32, 64, 128 and 256 round apart."""
    share = expected.axes(context.geometry, context.target.tp)["routed"].per_rank
    return [share, plan.align_up(share, 256) + SCALE_GROUP]


def _choice(context: Context) -> KernelChoice:
    return context.kernel(_widths(context))


def _where(context: Context) -> str:
    return f"MoE backend {context.target.backend} on {platform(context.target.capability)}"


@claim("plan.backend")
def backend(stack: Stack, context: Context) -> Evidence:
    """The oracle is asked for this backend with every kernel package taken as installed: what it refuses then, the
    device cannot run."""
    choice = _choice(context)
    ok = choice.backend in choice.candidates
    got = f"picks {choice.backend}" if choice.backend else f"refuses: {choice.refused or 'no answer'}"
    due = " or ".join(choice.candidates)
    meaning = "the stack's kernel does not run on this device" if not choice.backend else "another kernel would run"
    return Evidence(
        ok=ok,
        summary=f"{_where(context)}: the oracle {got}" + ("" if ok else f"; {due} was due"),
        expected=choice.candidates,
        measured=choice.backend or choice.refused,
        findings=[] if ok else [Finding(where=_where(context), expected=due, got=got, meaning=meaning)],
        notes=choice.notes,
    )


@claim("plan.kernel.activation")
def activation(stack: Stack, context: Context) -> Evidence:
    """Held against the profile's `arithmetic`. What the oracle refuses has no scheme."""
    choice, due = _choice(context), context.target.arithmetic
    if not choice.backend:
        raise NotSupported(f"{_where(context)}: the oracle picks nothing: {choice.refused}")
    meaning = "the profile's bounds, and the MoE layer's expectations, are those of another arithmetic"
    wrong = choice.scheme != due
    return Evidence(
        ok=not wrong,
        summary=f"{_where(context)}: {choice.backend}, {choice.scheme} x MXFP4" + (f"; {due} was due" if wrong else ""),
        expected=due,
        measured=choice.scheme,
        findings=[Finding(where=_where(context), expected=str(due), got=choice.scheme, meaning=meaning)]
        if wrong
        else [],
        notes=choice.notes,
    )


@claim("plan.kernel.rounding")
def rounding(stack: Stack, context: Context) -> Evidence:
    """The widths of layers that the stack builds for the backend, against one rounding for all of them, of those that
    hardware_profiles/backends.toml lists (several where versions differ)."""
    t, choice = context.target, _choice(context)
    widths, hidden = _widths(context), t.geometry.hidden_size
    lacking = [str(width) for width in widths if width not in choice.roundings]
    if lacking:
        raise NotSupported(f"{t.backend}: no layer of {', '.join(lacking)} elements a rank: {'; '.join(choice.notes)}")
    measured = {str(width): choice.roundings[width] for width in widths} | {"hidden": choice.hidden}
    dues = [
        {str(width): plan.kernel_width(width, step) for width in widths} | {"hidden": plan.kernel_width(hidden, wide)}
        for step in t.intermediate_roundings
        for wide in t.hidden_roundings
    ]
    nearest = min(dues, key=lambda due: sum(due[name] != measured[name] for name in due))
    wrong = [
        Finding(
            where=f"{t.backend}, {name} elements a rank" if name != "hidden" else f"{t.backend}, hidden size {hidden}",
            expected=str(due),
            got=str(measured[name]),
            meaning="the kernel's parameters have another width than the profile's data knows",
        )
        for name, due in nearest.items()
        if measured[name] != due
    ]
    told = ", ".join(f"{width} -> {measured[str(width)]}" for width in widths) + f", hidden {hidden} -> {choice.hidden}"
    return Evidence(
        ok=not wrong,
        summary=f"{t.backend}: {told}" + (f"; {wrong[0].expected} was due" if wrong else ""),
        expected=dues,
        measured=measured,
        findings=wrong,
        notes=choice.notes,
    )
