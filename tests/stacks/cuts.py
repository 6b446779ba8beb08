"""Which part of a checkpoint tensor a loader put into one expert: the plainest trace, two digits a position."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from conformance.geometry import Geometry

if TYPE_CHECKING:
    from conformance.stacks.protocols import ExpertsLayer

_BASE = 255
_POISON = 0xEE


class Cut(NamedTuple):
    """Checkpoint positions [start, stop) along the sharded axis, in a destination of `length`, in stored units."""

    start: int
    stop: int
    length: int
    zero: int
    untouched: int


def cut(layer: ExpertsLayer, geometry: Geometry, parameter: str, shard: str, expert: int) -> Cut:
    """Raises AssertionError unless the loaded part is one contiguous run at the destination's start."""
    import torch

    rows, cols = geometry.checkpoint_shape(parameter)
    by_row = parameter.startswith("w13")
    position = torch.arange(rows if by_row else cols)
    source = layer.allocate(rows * cols).view(rows, cols)
    seen = []
    for digit in (position // _BASE + 1, position % _BASE + 1):
        code = digit.to(torch.uint8)
        source.copy_(code[:, None] if by_row else code[None, :])
        layer.fill(parameter, _POISON)
        layer.load(parameter, shard, expert, source)
        bytes_ = layer.read(parameter, expert)
        line = bytes_[:, 0] if by_row else bytes_[0]
        if by_row:
            half = len(line) // 2
            line = line[:half] if shard == "w1" else line[half:]
        seen.append(line.int().clone())
    high, low = seen
    untouched = (high == _POISON) & (low == _POISON)
    loaded = (high > 0) & ~untouched
    found = ((high - 1) * _BASE + low - 1)[loaded]
    assert loaded[: len(found)].all()
    assert (found.diff() == 1).all()
    zero = ~loaded & ~untouched
    return Cut(int(found[0]), int(found[-1]) + 1, len(high), int(zero.sum()), int(untouched.sum()))
