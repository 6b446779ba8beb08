"""Digit passes: load numbered bytes and read off, exactly, where each destination byte came from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


#: Boxes of one expert that are told apart.
MOST_BOXES = 4096
#: What is untouched keeps any prefill; what is written with 255 does not.
_OTHER_PREFILL = 0xA5


def trace(
    layer: ExpertsLayer,
    parameter: str,
    rank: int,
    shards: tuple[str, ...],
    shape: tuple[int, int],
    experts: list[int],
) -> ProvenanceMap:
    """The map of `parameter` for the listed experts. `shape` is a checkpoint tensor's (rows, bytes) per expert.

    Some passes number the bytes within a tensor, alike for all tensors; others number the tensors (shard and listed
    expert), so that a byte from the wrong expert shows too.
    """
    rows, cols = shape
    slab, tensors = rows * cols, [(shard, expert) for shard in shards for expert in experts]
    source = layer.allocate(slab)

    def load_all(mark: Callable[[int], object], prefill: int = positions.PREFILL) -> list[torch.Tensor]:
        """Load every tensor, `mark`ing the source before each, then read every listed expert."""
        layer.fill(parameter, prefill)
        for number, (shard, expert) in enumerate(tensors):
            mark(number)
            layer.load(parameter, shard, expert, source.view(rows, cols))
        return [layer.read(parameter, expert).clone() for expert in experts]

    within, numbers = torch.arange(slab), torch.arange(len(tensors))
    of_bytes, of_tensors = [], []
    for index in range(positions.passes(slab)):
        source.copy_(positions.digit(within, index))
        of_bytes.append(load_all(lambda number: None))
    for index in range(positions.passes(len(tensors))):
        digits = positions.digit(numbers, index).tolist()
        of_tensors.append(load_all(partial(_fill, source, digits)))

    again = load_all(lambda number: None, _OTHER_PREFILL)

    found: list[Box] = []
    for e, expert in enumerate(experts):
        byte = positions.decode([seen[e] for seen in of_bytes], slab)
        tensor = positions.decode([seen[e] for seen in of_tensors], len(tensors))
        place = combined(byte, tensor, slab)
        place[(place == positions.UNTOUCHED) & (again[e] != _OTHER_PREFILL)] = positions.UNKNOWN
        found += boxes_of(place, expert, shards, experts, rows, cols)
    info = layer.info.parameters[parameter]
    shape_loaded = (max(experts) + 1, info.rows, info.cols)
    return ProvenanceMap(parameter, rank, shape_loaded, merge_experts(found), method="digit passes", traced=experts)


def _fill(source: torch.Tensor, values: list[int], number: int) -> None:
    source.fill_(values[number])


def combined(byte: torch.Tensor, tensor: torch.Tensor, slab: int) -> torch.Tensor:
    """Positions over all tensors; where the two kinds of pass disagree on what a byte is, it is UNKNOWN."""
    same = torch.where(byte == tensor, byte, positions.UNKNOWN)
    return torch.where((byte >= 0) & (tensor >= 0), tensor * slab + byte, same)


def boxes_of(
    place: torch.Tensor, expert: int, shards: tuple[str, ...], experts: list[int], rows: int, cols: int
) -> list[Box]:
    """Maximal boxes of one expert's positions (destination rows, cols). Behind the first MOST_BOXES of them the rest is
    one UNKNOWN box: a loader that scatters single bytes would make millions."""
    boxes: list[Box] = []
    starts = _row_groups(place, rows, cols)
    for top, bottom in zip(starts, [*starts[1:], place.shape[0]], strict=True):
        if len(boxes) > MOST_BOXES:
            rest = Span(top, place.shape[0])
            boxes.append(Box(Span(expert, expert + 1), rest, Span(0, place.shape[1]), State.UNKNOWN))
            break
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
