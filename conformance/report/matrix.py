"""The kill matrix as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from conformance.faults.selftest import Planted, Report

_STYLES = {
    "caught": "green",
    "alive": "bold red",
    "fails clean": "yellow",
    "not judged": "yellow",
    "not planted": "bold yellow",
    "no fault here": "dim",
}


def print_matrix(report: Report, to_stderr: bool = False) -> None:
    console = Console(stderr=to_stderr, highlight=False)
    table = Table(title=f"{report.stack} stack, {report.geometry} at TP{report.tp}", title_justify="left", box=None)
    for heading in ("fault", "outcome", "claims that name it"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "fault")
    for planted in report.faults:
        claims = ", ".join(claim + _mark(planted, claim) for claim in planted.claims)
        table.add_row(planted.id, f"[{_STYLES[planted.outcome]}]{planted.outcome}", claims)
    console.print(table)
    for planted in report.faults:
        if planted.reason:
            console.print(f"{planted.id}: {planted.reason}", markup=False)
    for claim, words in report.clean.items():
        console.print(f"without any fault: {claim} {words}", markup=False)
    counts = ", ".join(f"{n} {word}" for word, n in report.counts.items() if n)
    silent = "the clean stack is silent" if not report.clean else f"{len(report.clean)} claims do not pass clean"
    plural = "" if len(report.faults) == 1 else "s"
    console.print(f"{len(report.faults)} fault{plural}: {counts}; {silent}", markup=False)


def _mark(planted: Planted, claim: str) -> str:
    if claim in planted.spared:
        return " (spared!)"
    if claim in planted.fails_clean:
        return f" ({'not judged' if planted.outcome == 'not judged' else 'fails clean'})"
    return ""
