"""The gate as a person sees it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from conformance.catalogue import Claim
from conformance.gate.settings import Resolved
from conformance.gate.verdict import Verdict, Word
from conformance.report import words
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


class Terminal:
    def __init__(self, to_stderr: bool = False):
        self._console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self._said: dict[str, str] = {}

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)

    def opening(self, run: Resolved) -> None:
        self.say(words.opening(run))

    def progress(self, claim: Claim, result: ClaimResult | None) -> None:
        if result is None:
            return
        line = Text(f"{result.status:>14}  ", style=STYLES.get(result.status, "yellow"))
        gist = words.gist(result)
        first = self._said.setdefault(gist, result.id) if result.status is not Status.PASS else result.id
        line.append(f"{result.id:<26} {gist if first == result.id else f'the same as {first}'}", style="default")
        self._console.print(line)
        if first != result.id:
            return
        for detail in words.details(result):
            self.say(f"{'':16}{detail}")

    def closing(self, verdict: Verdict, path: Path) -> None:
        self.say(words.counts(verdict, path))
        if lacking := words.lacking(verdict):
            self.say(lacking)
        self._console.print(Text(verdict.headline, style=_WORDS[verdict.verdict]))
