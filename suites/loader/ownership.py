"""Which stretches of an axis nobody owns, and which somebody owns twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from conformance.provenance.boxes import Span


def gaps(owned: list[tuple[Span, int]], total: int) -> Iterator[tuple[Literal["lost", "doubled"], Span, int | None]]:
    """(what, span, rank whose stretch shows it) over [0, total), in order. `owned`: (span, rank) pairs in any order."""
    reached = 0
    for run, rank in sorted(owned):
        if run.start > reached:
            yield "lost", Span(reached, run.start), rank
        elif run.start < reached:
            yield "doubled", Span(run.start, min(reached, run.stop)), rank
        reached = max(reached, run.stop)
    if reached < total:
        yield "lost", Span(reached, total), None
