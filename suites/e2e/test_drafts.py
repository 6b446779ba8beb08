"""Multi-token prediction: the draft is worth what the checkpoint's is, and final tokens are the target's own."""

from __future__ import annotations

from conformance.context import Context
from conformance.e2e.acceptance import half_width, length
from conformance.e2e.measured import DRAFTED, DRAFTS
from conformance.result import Evidence, Finding
from conformance.stacks.engine_protocol import Drafts
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.e2e.telling import bounds, compare, evidence


@claim("e2e.mtp.acceptance")
def acceptance(stack: Stack, context: Context) -> Evidence:
    """Tokens a verification step yields, with a confidence interval, against the reference's draft of the same answers.
    A draft that is too good was not verified."""
    measured = context.e2e
    seen, due = measured.drafting().drafts, measured.drafts_due
    where = f"{measured.name(measured.sizes[-1])}, {DRAFTS} draft tokens a step"
    told = {"engine": _told(seen), "reference": _told(due)}
    if not seen.steps:
        return evidence(measured, [Finding(where, "steps that verify draft tokens", "none")], "", told)
    half = half_width(seen, due)
    words = f"{length(seen):.2f} +- {half:.2f} tokens a step over {seen.steps} steps"
    findings = []
    if not abs(length(seen) - length(due)) <= half:
        findings.append(Finding(where, f"{length(due):.2f} tokens a step, as the reference's draft", words))
    return evidence(measured, findings, f"{words}; the reference's draft {length(due):.2f}", told, length(due))


def _told(drafts: Drafts) -> dict[str, object]:
    return {"steps": drafts.steps, "accepted by position": list(drafts.accepted)}


@claim("e2e.mtp.parity")
def parity(stack: Stack, context: Context) -> Evidence:
    """Greedy answers with drafts against without: within the limits of batching, since verifying is a batch."""
    measured = context.e2e
    found, clean = measured.drafting(), measured.drafting_limits.schedule
    seen: dict[str, dict[str, float]] = {}
    findings: list[Finding] = []
    what = f"{measured.name(measured.sizes[-1])}, with {DRAFTS} draft tokens a step against without"
    compare(measured, what, found.without, found.answers, seen, findings, clean)
    short = [n for n, a in enumerate(found.answers) if len(a.tokens) != DRAFTED]
    if short:
        got = f"{len(found.answers[short[0]].tokens)}"
        findings.append(Finding(f"{what}, prompt {short[0]}", f"{DRAFTED} tokens", got))
    return evidence(measured, findings, "final tokens are those without drafts", seen, bounds(clean))
