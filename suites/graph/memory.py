"""Buffers cut from one piece of memory whose gaps hold canaries."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

_CANARY = 0xA5
_GAP = 256

#: Values for the buffers, by name.
Inputs = dict[str, torch.Tensor]
#: Shape and dtype of each buffer, in the order of the buffers' fields.
Shapes = list[tuple[tuple[int, ...], torch.dtype]]


class Held(NamedTuple):
    """`buffers`: a NamedTuple of graph_protocol."""

    buffers: Any
    gaps: list[torch.Tensor]

    def spoilt(self) -> int:
        """Bytes of the gaps that were written."""
        return sum(int((gap != _CANARY).sum()) for gap in self.gaps)

    def put(self, inputs: Inputs) -> None:
        """New inputs in the same memory, and NaN where the output goes."""
        for name, value in inputs.items():
            getattr(self.buffers, name)[: len(value)].copy_(value)
        self.buffers.out.fill_(torch.nan)

    def changed(self, inputs: Inputs) -> list[str]:
        """Inputs that are not as they were put."""
        return [name for name, value in inputs.items() if not torch.equal(getattr(self.buffers, name), value)]


def cut(kind: Any, shapes: Shapes, device: str) -> Held:
    """Buffers of those shapes, of that NamedTuple."""
    sizes = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes]
    steps = [_GAP + -(-size // _GAP) * _GAP for size in sizes]
    flat = torch.full((sum(steps) + _GAP,), _CANARY, dtype=torch.uint8, device=device)
    at, buffers, gaps = 0, [], []
    for (shape, dtype), size, step in zip(shapes, sizes, steps, strict=True):
        gaps.append(flat[at : at + _GAP])
        buffers.append(flat[at + _GAP : at + _GAP + size].view(dtype).view(shape))
        gaps.append(flat[at + _GAP + size : at + step])
        at += step
    gaps.append(flat[at:])
    return Held(kind(*buffers), gaps)
