"""The gate as a person sees it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from conformance.catalogue import Claim
from conformance.gate.settings import Resolved
from conformance.gate.verdict import Verdict, Word
from conformance.result import ClaimResult, Status

STYLES = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.CRASH: "bold red",
    Status.WAIVED: "yellow",
    Status.NOT_APPLICABLE: "dim",
}
_WORDS = {
    Word.GO: "bold green",
    Word.WAIVED: "bold yellow",
    Word.NO_GO: "bold red",
    Word.INCOMPLETE: "bold yellow",
}
_FINDINGS = 3


class Terminal:
    def __init__(self, to_stderr: bool = False):
        self._console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)

    def say(self, words: str) -> None:
        self._console.print(words, markup=False)

    def opening(self, run: Resolved) -> None:
        t = run.target
        emulating = f", emulating {run.settings.emulate}" if run.settings.emulate else ""
        self.say(
            f"{t.geometry.name} at TP{t.tp}, profile {run.profile.name}{emulating}, "
            f"stack {run.stack_words}, MoE backend {t.backend}"
        )

    def progress(self, claim: Claim, result: ClaimResult | None) -> None:
        if result is None:
            return
        line = Text(f"{result.status:>14}  ", style=STYLES.get(result.status, "yellow"))
        line.append(f"{result.id:<26}", style="default")
        words = result.evidence.summary if result.evidence else result.reason
        line.append(f" {words}", style="default")
        self._console.print(line)
        if result.evidence and not result.evidence.ok:
            for finding in result.evidence.findings[:_FINDINGS]:
                self.say(f"{'':16}{finding.where}: expected {finding.expected}, got {finding.got}")
                if finding.meaning:
                    self.say(f"{'':18}{finding.meaning}")
            more = len(result.evidence.findings) - _FINDINGS
            if more > 0:
                self.say(f"{'':16}and {more} more in the evidence")
        if result.repeat and result.status in (Status.FAIL, Status.CRASH, Status.ERROR, Status.TIMEOUT):
            self.say(f"{'':16}repeat: {result.repeat}")

    def closing(self, verdict: Verdict, path: Path) -> None:
        counts = ", ".join(f"{n} {status}" for status, n in verdict.counts.items()) or "nothing ran"
        missing = [r for r in verdict.claims if r.required and r.status not in (Status.PASS, Status.NOT_APPLICABLE)]
        self.say(f"{counts}; evidence in {path}")
        if verdict.verdict is Word.INCOMPLETE and missing:
            self.say(f"required and not proved: {', '.join(r.id for r in missing)}")
        self._console.print(Text(verdict.headline, style=_WORDS[verdict.verdict]))
