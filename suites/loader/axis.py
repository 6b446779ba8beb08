"""One routed-expert parameter seen along the intermediate axis: the axis that tensor parallelism cuts.

W13 and its scales are cut along rows (two halves, W1 and W3), W2 and its scales along columns (bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conformance import expected
from conformance.context import Context, Loaded
from conformance.provenance.boxes import Box, Origin, Span, State
from conformance.stacks.protocols import SHARDS
from references.shards import Shard

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

    def due(self, context: Context, rank: int, loaded: Loaded) -> Shard:
        """The shard in stored units; `width` is what the built parameter holds of the axis."""
        _, rows, cols = loaded.seen.shape
        width = (rows // 2 if self.by_rows else cols) * expected.unit(self.parameter)
        return expected.shard(context.geometry, context.target.tp, rank, self.parameter, width)

    def of(self, box: Box) -> Span:
        """The box's extent along the axis, counted within its half."""
        return box.rows if self.by_rows else box.cols

    def position(self, origin: Origin) -> int:
        """A checkpoint byte's position on the axis."""
        return origin.row if self.by_rows else origin.col

    def logical(self, loaded: Loaded, due: Shard, shape: tuple[int, int]) -> Iterator[tuple[str, Span, Span]]:
        """(shard, rows, cols) of the destination regions that hold checkpoint bytes."""
        half = loaded.seen.shape[1] // 2
        for index, shard in enumerate(self.shards):
            if self.by_rows:
                yield shard, Span(index * half, index * half + due.size), Span(0, shape[1])
            else:
                yield shard, Span(0, shape[0]), Span(0, due.size)

    def slices(self, loaded: Loaded, expert: int, shard: str) -> list[tuple[Span, Span]]:
        """(destination, source) runs along the axis of one expert's shard, as measured anywhere in the parameter.

        Runs are those of the first row (or byte) that the box covers on the other axis; equal ones are joined.
        """
        runs = set()
        for box in loaded.seen.boxes:
            if box.state is State.SOURCE and box.experts & Span(expert, expert + 1):
                origin = box.at(expert, box.rows.start, box.cols.start)
                assert origin is not None
                if origin.shard == shard:
                    start, along = self.position(origin), self.of(box)
                    runs.add((along, Span(start, start + len(along))))
        return sorted(runs)
