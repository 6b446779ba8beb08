"""A parameter of the reference stack's whole models, kept as what was written to it; its bytes are made when read.

A synthetic tensor is one line of codes whatever its size: a rank of DeepSeek-V4-Flash, 1.1 GB, is held in 4.2 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class _Written(NamedTuple):
    """Rows [top, bottom): `part`, which begins there at index 0 of every axis, and the parameter's `rest` behind it."""

    top: int
    bottom: int
    part: torch.Tensor | None


class Memory:
    """Used for one read after the other: what is given back between small things that stay leaves a heap of holes."""

    def __init__(self) -> None:
        self._held: torch.Tensor | None = None

    def of(self, size: int) -> torch.Tensor:
        """So many bytes, uint8."""
        import torch

        if self._held is None or self._held.numel() < size:
            self._held = torch.empty(size, dtype=torch.uint8)
        return self._held[:size]


class Pieces:
    """Of torch's `dtype` and that shape, `rest` everywhere (an integer for E8M0, which has no 0.0).

    Rows are indices of the first axis.
    """

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], rest: int | float):
        self.dtype = dtype
        self._shape, self._rest = shape, rest
        self._byte: int | None = None
        self._written: list[_Written] = []

    def fill(self, byte: int) -> None:
        """Every byte holds that value, and nothing that was written is left."""
        self._byte = byte
        self._written.clear()

    def write(self, top: int, bottom: int, part: torch.Tensor | None) -> None:
        """`part` (None: nothing) into rows [top, bottom), `rest` where it does not reach. It is kept, not copied."""
        self._written = [old for old in self._written if old.top < top or old.bottom > bottom]
        self._written.append(_Written(top, bottom, part))

    def read(self, first: int, last: int, memory: Memory) -> torch.Tensor:
        """Bytes [first, last) in memory order, uint8, valid until the memory is used again."""
        width = self.dtype.itemsize
        for length in self._shape[1:]:
            width *= length
        top, bottom = first // width, -(-last // width)
        flat = memory.of((bottom - top) * width)
        self._make(flat.view(self.dtype).view(bottom - top, *self._shape[1:]), top, bottom)
        return flat[first - top * width : last - top * width]

    def _make(self, rows: torch.Tensor, top: int, bottom: int) -> None:
        """Rows [top, bottom) as the last that was written has them."""
        import torch

        here = [one for one in self._written if one.top < bottom and one.bottom > top]
        if not any(one.top <= top and one.bottom >= bottom for one in here):
            if self._byte is None:
                rows.fill_(self._rest)
            else:
                rows.view(-1).view(torch.uint8).fill_(self._byte)
        for one in here:
            low, high = max(top, one.top), min(bottom, one.bottom)
            room = rows[low - top : high - top]
            part = None if one.part is None else one.part[low - one.top : high - one.top]
            if part is None or part.shape != room.shape:
                room.fill_(self._rest)
            if part is not None:
                room[tuple(slice(length) for length in part.shape)] = part
