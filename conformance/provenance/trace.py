"""Digit passes: load numbered bytes and read off, exactly, where each destination byte came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from conformance.provenance import positions
from conformance.provenance.boxes import Box, Origin, ProvenanceMap, Span, State, merge_experts

if TYPE_CHECKING:
    from conformance.stacks.protocols import ExpertsLayer

_STATES = {
    positions.ZERO: State.ZERO,
    positions.UNTOUCHED: State.UNTOUCHED,
    positions.UNKNOWN: State.UNKNOWN,
}


def trace(
    layer: ExpertsLayer,
    parameter: str,
    rank: int,
    shards: tuple[str, ...],
    shape: tuple[int, int],
    experts: list[int],
) -> ProvenanceMap:
    """The map of `parameter` for the listed experts. `shape` is a checkpoint tensor's (rows, bytes) per expert.

    Positions number shard, listed expert, row and byte together, so that a byte from the wrong expert shows too.
    """
    rows, cols = shape
    slab = rows * cols
    count = len(shards) * len(experts) * slab
    source = layer.allocate(slab)
    within = torch.arange(slab, dtype=torch.int64)
    seen: list[list[torch.Tensor]] = [[] for _ in experts]
    for index in range(positions.passes(count)):
        layer.fill(parameter, positions.PREFILL)
        for s, shard in enumerate(shards):
            for e, expert in enumerate(experts):
                first = (s * len(experts) + e) * slab
                source.copy_(positions.digit(within + first, index))
                layer.load(parameter, shard, expert, source.view(rows, cols))
        for e, expert in enumerate(experts):
            seen[e].append(layer.read(parameter, expert).clone())
    found: list[Box] = []
    for e, expert in enumerate(experts):
        place = positions.decode(seen[e], count)
        seen[e] = []
        found += _boxes(place, expert, shards, experts, rows, cols)
    info = layer.info.parameters[parameter]
    shape_loaded = (max(experts) + 1, info.rows, info.cols)
    return ProvenanceMap(parameter, rank, shape_loaded, merge_experts(found), method="digit passes", traced=experts)


def _boxes(
    place: torch.Tensor, expert: int, shards: tuple[str, ...], experts: list[int], rows: int, cols: int
) -> list[Box]:
    """Maximal boxes of one expert's positions (destination rows, cols)."""
    boxes = []
    starts = _row_groups(place, rows, cols)
    for top, bottom in zip(starts, [*starts[1:], place.shape[0]], strict=True):
        for left, right in _column_runs(place[top], cols):
            value = int(place[top, left])
            origin = None
            if value >= 0:
                slab, offset = divmod(value, rows * cols)
                shard, listed = divmod(slab, len(experts))
                origin = Origin(shards[shard], experts[listed], *divmod(offset, cols))
            state = State.SOURCE if origin else _STATES[value]
            boxes.append(Box(Span(expert, expert + 1), Span(top, bottom), Span(left, right), state, origin))
    return boxes


def _row_groups(place: torch.Tensor, rows: int, cols: int) -> list[int]:
    """Rows that begin a box: the row is not the one above moved down by one checkpoint row of the same tensor."""
    above, below = place[:-1], place[1:]
    slab = rows * cols
    same = torch.where(above >= 0, (below == above + cols) & (below // slab == above // slab), below == above)
    return [0, *(torch.nonzero(~same.all(dim=1)).flatten() + 1).tolist()]


def _column_runs(row: torch.Tensor, cols: int) -> list[tuple[int, int]]:
    """Columns [left, right) that run in step within one checkpoint row, or share one state."""
    left, right = row[:-1], row[1:]
    same = torch.where(left >= 0, (right == left + 1) & (right // cols == left // cols), right == left)
    starts = [0, *(torch.nonzero(~same).flatten() + 1).tolist()]
    return list(zip(starts, [*starts[1:], row.numel()], strict=True))
