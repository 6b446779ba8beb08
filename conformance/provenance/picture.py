"""A map seen along the sharded axis, for tables and drawings: the runs of one shard of one expert."""

from __future__ import annotations

from typing import NamedTuple

from conformance.provenance.axis import Axis
from conformance.provenance.boxes import ProvenanceMap, Span, State


class Run(NamedTuple):
    """`place` on the destination's axis, counted from where the shard's part begins; `source` on the checkpoint's."""

    place: Span
    state: State
    source: Span | None
    #: The shard that the bytes come from: `w1` where W3 was due is a swap.
    shard: str


def runs(loaded: ProvenanceMap, index: int, expert: int | None = None) -> list[Run]:
    """Runs of the `index`-th shard's part of one expert (default: the first one measured), in order.

    Only the first byte (W13) or row (W2) across the axis is shown; equal boxes further across are the same picture.
    """
    axis = Axis(loaded.parameter)
    expert = loaded.covered[0] if expert is None else expert
    base = index * axis.width(loaded) if axis.by_rows else 0
    region = Span(base, base + axis.width(loaded))
    rows, cols = (region, Span(0, 1)) if axis.by_rows else (Span(0, 1), region)
    found = []
    for box in loaded.of_experts([expert]).within(rows, cols):
        along = axis.along(box)
        source = None
        if box.origin:
            start = axis.position(box.origin)
            source = Span(start, start + len(along))
        place = Span(along.start - base, along.stop - base)
        found.append(Run(place, box.state, source, box.origin.shard if box.origin else ""))
    return sorted(found, key=lambda run: run.place)
