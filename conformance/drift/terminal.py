"""The report on a terminal: a table a pillar, then each drift with its evidence on both sides."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.drift.audit import Outcome, Report
from conformance.drift.finding import PILLARS, Evidence
from conformance.errors import printable

_COLOUR = {"pass": "green", "drift": "red", "not-found": "yellow"}
#: Evidence lines of one side that are shown; the JSON has all.
_MOST_PLACES = 12


def show(report: Report, to_stderr: bool = False) -> None:
    console = Console(highlight=False, soft_wrap=False, stderr=to_stderr)
    shown = [o for o in report.outcomes if not report.baseline or o.new]
    for pillar in PILLARS.values():
        outcomes = [o for o in shown if o.pillar == pillar]
        if outcomes:
            console.print(_table(pillar, outcomes))
    for outcome in shown:
        if outcome.status == "drift":
            _details(console, outcome)
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
    console.print(f"{counts}; design: {', '.join(report.features) or 'not told'}", soft_wrap=True, markup=False)
    console.print(f"[bold]{escape(report.headline)}[/bold]", soft_wrap=True)


def _table(pillar: str, outcomes: list[Outcome]) -> Table:
    table = Table(title=f"{pillar}", title_justify="left", expand=False, show_lines=False)
    table.add_column("rule", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what", ratio=2)
    table.add_column("found", ratio=3, overflow="fold")
    for outcome in outcomes:
        finding = outcome.finding
        status = f"[{_COLOUR[outcome.status]}]{outcome.status}[/]" + (" (deferred)" if finding.deferred else "")
        found = f"{finding.reason}: {finding.actual}" if finding.reason else finding.actual
        if outcome.status == "drift":  # told in full below
            told = outcome.new or finding.differences
            found = told[0] + (f" (and {len(told) - 1} more)" if len(told) > 1 else "")
        found += f" ({finding.note})" if finding.note and outcome.status == "pass" else ""
        table.add_row(outcome.id, status, escape(outcome.title), escape(printable(found)))
    return table


def _details(console: Console, outcome: Outcome) -> None:
    finding = outcome.finding

    def line(text: str) -> None:
        console.print(printable(text), soft_wrap=True, markup=False)

    console.print(f"\n[red]{outcome.id}[/] [bold]{escape(outcome.title)}[/] ({outcome.severity})", soft_wrap=True)
    line(f"  expected  {finding.expected}")
    for difference in outcome.new or finding.differences:
        line(f"  found     {difference}")
    for side, places in (("mpk", finding.mpk), ("vllm", finding.ref)):
        for text in _places(places):
            line(f"  {side:<9} {text}")
    if finding.note:
        line(f"  note      {finding.note}")
    line(f"  why       {outcome.why}")


def _places(places: list[Evidence]) -> Iterable[str]:
    for place in places[:_MOST_PLACES]:
        name = f" {place.qualname}" if place.qualname else ""
        yield f"{place.place}{name}: {place.snippet}"
    if len(places) > _MOST_PLACES:
        yield f"and {len(places) - _MOST_PLACES} more places: {', '.join(p.place for p in places[_MOST_PLACES:])}"
