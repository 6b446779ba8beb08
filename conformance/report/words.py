"""What a run says in words, wherever it says it: the gate's terminal and pytest's own."""

from __future__ import annotations

from pathlib import Path

from conformance.gate.settings import Resolved
from conformance.gate.verdict import Verdict, Word
from conformance.result import ClaimResult, Status

_FINDINGS = 3
#: Statuses that someone will want to repeat.
_REPEATED = (Status.FAIL, Status.CRASH, Status.ERROR, Status.TIMEOUT)


def opening(run: Resolved) -> str:
    """What is judged, in one line."""
    t = run.target
    emulating = f", emulating {run.settings.emulate}" if run.settings.emulate else ""
    sizes = t.sizes if run.layers == ("e2e",) else (t.tp,)
    size = "servers that are up" if t.endpoint else f"TP{', TP'.join(map(str, sizes))}"
    return (
        f"{t.geometry.name} at {size}, profile {run.profile.name}{emulating}, "
        f"stack {run.stack_words}, MoE backend {t.backend}"
    )


def gist(result: ClaimResult) -> str:
    return result.evidence.summary if result.evidence else result.reason


def details(result: ClaimResult) -> list[str]:
    """The first findings of a failed claim, and the command that repeats it."""
    lines = []
    if result.evidence and not result.evidence.ok:
        for finding in result.evidence.findings[:_FINDINGS]:
            lines.append(f"{finding.where}: expected {finding.expected}, got {finding.got}")
            if finding.meaning:
                lines.append(f"  {finding.meaning}")
        more = len(result.evidence.findings) - _FINDINGS
        if more > 0:
            lines.append(f"and {more} more in the evidence")
    if result.repeat and result.status in _REPEATED:
        lines.append(f"repeat: {result.repeat}")
    return lines


def counts(verdict: Verdict, path: Path) -> str:
    statuses = ", ".join(f"{n} {status}" for status, n in verdict.counts.items()) or "nothing ran"
    return f"{statuses}; evidence in {path}"


def unproved(verdict: Verdict) -> list[str]:
    """Ids that are required and neither passed nor turned out not to apply."""
    return [r.id for r in verdict.claims if r.required and r.status not in (Status.PASS, Status.NOT_APPLICABLE)]


def lacking(verdict: Verdict) -> str:
    """Why it is INCOMPLETE, in a line; empty where it is not."""
    if verdict.verdict is not Word.INCOMPLETE:
        return ""
    if missing := unproved(verdict):
        return f"required and not proved: {', '.join(missing)}"
    return f"profile {verdict.profile} requires none of these claims, or none that applies: nothing here makes a GO"
