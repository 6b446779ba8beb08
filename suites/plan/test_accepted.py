"""Does the stack accept the configuration at all? Accepted, refused with a reason, silently ignored: three outcomes."""

from __future__ import annotations

from conformance import expected
from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim


@claim("plan.accepted")
def accepted(stack: Stack, context: Context) -> Evidence:
    t = context.target
    outcome = context.plan()
    padding = expected.needs_padding(t.geometry, t.tp)
    asked = f"{t.geometry.name} at TP{t.tp} with {t.attention or 'default'} attention and {t.backend} MoE"
    meaning = {
        "accepted": "",
        "refused": "the stack's own validation rejects what this profile requires",
        "ignored": f"no error and no plan, although {', '.join(padding)} must be padded: it would load wrong weights",
    }[outcome.outcome]
    findings = []
    if outcome.outcome != "accepted":
        got = outcome.message or "no plan and no error"
        findings.append(Finding(where=asked, expected="accepted", got=f"{outcome.outcome}: {got}", meaning=meaning))
    return Evidence(
        ok=outcome.outcome == "accepted",
        summary=f"{asked}: {outcome.outcome}" + (f": {outcome.message}" if outcome.message else ""),
        expected="accepted",
        measured=outcome.outcome,
        findings=findings,
        notes=outcome.notes,
    )
