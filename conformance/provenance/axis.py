"""One routed-expert parameter seen along the intermediate axis: the axis that tensor parallelism cuts.

W13 and its scales are cut along rows (two halves, W1 and W3), W2 and its scales along columns (bytes).
"""

from __future__ import annotations

from dataclasses import dataclass

from conformance.provenance.boxes import Box, Origin, ProvenanceMap, Span, State
from conformance.stacks.protocols import SHARDS

#: What one stored unit of the axis is called, singular.
UNITS = {"w13_weight": "row", "w13_weight_scale": "row", "w2_weight": "byte", "w2_weight_scale": "group"}


@dataclass(frozen=True)
class Axis:
    parameter: str

    @property
    def by_rows(self) -> bool:
        return self.parameter.startswith("w13")

    @property
    def unit(self) -> str:
        return UNITS[self.parameter]

    @property
    def shards(self) -> tuple[str, ...]:
        return SHARDS[self.parameter]

    def width(self, loaded: ProvenanceMap) -> int:
        """Stored units that the parameter holds for one shard: half of W13's rows, all of W2's columns."""
        _, rows, cols = loaded.shape
        return rows // 2 if self.by_rows else cols

    def first_shard(self, loaded: ProvenanceMap) -> tuple[Span, Span]:
        """(rows, cols) of the destination that belong to the first shard."""
        _, rows, cols = loaded.shape
        return Span(0, rows // 2 if self.by_rows else rows), Span(0, cols)

    def along(self, box: Box) -> Span:
        """The box's extent along the axis, in destination units (W3's begin at half of the rows)."""
        return box.rows if self.by_rows else box.cols

    def position(self, origin: Origin) -> int:
        """A checkpoint byte's position on the axis."""
        return origin.row if self.by_rows else origin.col

    def slices(self, loaded: ProvenanceMap, expert: int, shard: str) -> list[tuple[Span, Span]]:
        """(destination, source) runs along the axis of one expert's shard, wherever in the parameter they landed."""
        runs = set()
        for box in loaded.boxes:
            if box.state is State.SOURCE and box.experts & Span(expert, expert + 1):
                origin = box.at(expert, box.rows.start, box.cols.start)
                assert origin is not None
                if origin.shard == shard:
                    start, along = self.position(origin), self.along(box)
                    runs.add((along, Span(start, start + len(along))))
        return sorted(runs)
