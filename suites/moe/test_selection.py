"""Which MoE kernel the stack's own selection code gives on each capability, against the profiles' data.

Every profile's capability is asked about, whatever profile the run has: a fleet is rarely of one kind.
"""

from __future__ import annotations

import hardware_profiles
from conformance import expected
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.stacks.selection_protocol import UNASKED, Choice, SelectionRequest
from conformance.suite import claim
from conformance.target import platform
from hardware_profiles import Profile

_Table = dict[tuple[tuple[int, int], str], Choice]


def _profiles() -> list[Profile]:
    return sorted(
        (p for p in map(hardware_profiles.load, hardware_profiles.names()) if p.capability),
        key=lambda p: p.capability or (0, 0),
    )


def _table(context: Context) -> _Table:
    """(capability, name asked for) -> the choice."""
    t = context.target
    share = expected.axes(t.geometry, t.tp)["routed"].per_rank
    request = SelectionRequest(t.geometry, t.tp, share, tuple(p.capability for p in _profiles() if p.capability))
    found: _Table = context.once(
        "selection", lambda: {(c.capability, c.asked): c for c in context.selection.choices(request)}
    )
    return found


def _told(choice: Choice) -> str:
    if choice.backend:
        return f"{choice.backend} ({choice.scheme})"
    return f"cannot be asked here: {choice.lacking}" if choice.lacking else "refused"


def _measured(table: _Table) -> dict[str, dict[str, str]]:
    """The whole table: by capability and name, refusals left out of a row whose name is refused everywhere."""
    accepted = {name for (_, name), choice in table.items() if choice.backend or choice.lacking}
    rows: dict[str, dict[str, str]] = {}
    for (capability, name), choice in table.items():
        if name in accepted:
            rows.setdefault(platform(capability), {})[name] = _told(choice)
    return rows


@claim("moe.selection.asked")
def asked(stack: Stack, context: Context) -> Evidence:
    """Asked for the backend of a capability's own profile, the stack gives it, in that profile's arithmetic; asked for
    another that the profile vets, it gives that one."""
    table = _table(context)
    findings, due = [], {}
    for profile in _profiles():
        assert profile.capability
        for name in dict.fromkeys([profile.backend, *(moe for _, moe in profile.vetted)]):
            choice = table.get((profile.capability, name))
            if choice is None:
                raise NotSupported(f"the stack knows no MoE backend {name}, which profile {profile.name} names")
            if choice.lacking:
                raise NotSupported(f"{name} on {platform(profile.capability)}: {_told(choice)}")
            scheme = profile.arithmetic if name == profile.backend else choice.scheme
            due[f"{name} on {platform(profile.capability)}"] = f"{name}, {scheme} x MXFP4"
            if choice.family != name or choice.scheme != scheme:
                findings.append(
                    Finding(
                        where=f"asked for {name} on {platform(profile.capability)}",
                        expected=f"a kernel of {name}, {scheme} x MXFP4",
                        got=choice.refused or _told(choice),
                        meaning=f"against profile {profile.name}",
                    )
                )
    return Evidence(
        ok=not findings,
        summary=f"asked for the profiles' own backends, the stack gives them: {_short(table, _profiles())}"
        if not findings
        else f"{findings[0].where}: {findings[0].got}; {findings[0].expected} due",
        expected=due,
        measured=_measured(table),
        findings=findings,
        method="the stack's own selection code, platform pretended, kernel packages taken as installed",
    )


def _short(table: _Table, profiles: list[Profile]) -> str:
    return ", ".join(
        f"{table[p.capability, p.backend].scheme} at {platform(p.capability)}" for p in profiles if p.capability
    )


@claim("moe.selection.unasked")
def unasked(stack: Stack, context: Context) -> Evidence:
    """Left alone, the stack gives what the capability's profile says that it may: nobody is surprised."""
    table = _table(context)
    findings, due, got, own = [], {}, {}, []
    for profile in _profiles():
        assert profile.capability
        choice, where = table[profile.capability, UNASKED], platform(profile.capability)
        if choice.lacking:
            raise NotSupported(f"left alone on {where}: {_told(choice)}")
        allowed = dict.fromkeys([profile.backend, *profile.unasked])
        due[where], got[where] = " or ".join(allowed), _told(choice)
        if choice.family == profile.backend:
            own.append(profile.name)
        if choice.family not in allowed:
            findings.append(
                Finding(f"left alone on {where}", due[where], choice.refused or got[where], f"profile {profile.name}")
            )
    return Evidence(
        ok=not findings,
        summary="left alone, the stack gives " + ", ".join(f"{told} on {where}" for where, told in got.items())
        if not findings
        else f"{findings[0].where}: {findings[0].got}; {findings[0].expected} due",
        expected=due,
        measured=got,
        findings=findings,
        notes=[f"the profile's own backend comes unasked on: {', '.join(own) or 'none: it must be asked for'}"],
        method="the stack's own selection code, platform pretended, kernel packages taken as installed",
    )
