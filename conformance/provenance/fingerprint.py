"""The fast pass: load pseudo-random bytes for every expert and compare with what the expected map demands.

In the first load source bytes lie in 1..254, so that a byte which is zero (0) or was never written (255) always
shows; in the second they take all 256 values. A misplaced run of n bytes agrees by chance with probability about
254**-n. Expert e's tensor is a window into one random buffer at a random offset of its own: no expert shares its
bytes with another, and nothing is copied to make it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from conformance.errors import AdapterError
from conformance.provenance.boxes import Box, ProvenanceMap, Span, State
from conformance.provenance.positions import PREFILL

if TYPE_CHECKING:
    from conformance.stacks.protocols import ExpertsLayer

_STRIDE = 64  # windows start on whole cache lines, so that rows can be compared as int64


class Kind(NamedTuple):
    """Source bytes lie in [low, high); `prefill` is what the destination holds before. `zeros`: is the first expert's
    every tensor all zeros?"""

    low: int
    high: int
    prefill: int
    zeros: bool


FIRST = Kind(1, 255, PREFILL, False)
SECOND = Kind(0, 256, 0xA5, True)


class Seen(NamedTuple):
    """`tails`: state of the zero boxes by index, as the first expert has them (ZERO, or UNTOUCHED where the prefill
    stands). `wrong`: experts that hold other bytes. `uneven`: right ones, but their zero boxes are of another state."""

    tails: dict[int, State]
    wrong: list[int]
    uneven: list[int]

    @property
    def clean(self) -> bool:
        return not self.wrong and not self.uneven


class Windows:
    """Random checkpoint tensors (rows, cols) of every (shard, expert), cut from one shared buffer."""

    def __init__(
        self,
        layer: ExpertsLayer,
        shape: tuple[int, int],
        shards: tuple[str, ...],
        experts: list[int],
        seed: int,
        kind: Kind = FIRST,
    ):
        self.shape, self.prefill = shape, kind.prefill
        rng = torch.Generator().manual_seed(seed + kind.prefill)
        tensors = [(shard, expert) for shard in shards for expert in experts]
        slots = 16 * len(tensors)
        order = torch.randperm(slots, generator=rng)[: len(tensors)]
        size = shape[0] * shape[1]
        random = size + slots * _STRIDE
        self._offsets = dict(zip(tensors, (order * _STRIDE).tolist(), strict=True))
        self._buffer = layer.allocate(random + (size if kind.zeros else 0))
        self._buffer[:random].random_(kind.low, kind.high, generator=rng)
        if kind.zeros:
            self._buffer[random:] = 0
            self._offsets |= {(shard, experts[0]): random for shard in shards}

    def source(self, shard: str, expert: int) -> torch.Tensor:
        offset = self._offsets[shard, expert]
        return self._buffer[offset : offset + self.shape[0] * self.shape[1]].view(self.shape)


def verify(layer: ExpertsLayer, expected: ProvenanceMap, windows: Windows, experts: list[int]) -> Seen:
    """Compare these experts with the expected map. Only a Seen that is `clean` vouches for it."""
    tails: dict[int, State] = {}
    wrong, uneven = [], []
    for expert in experts:
        data = checked(layer.read(expected.parameter, expert), expected)
        right = even = True
        for index, box in enumerate(expected.boxes):
            part = data[box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]
            if box.state is State.SOURCE:
                right &= same(part, _source(box, expert, windows))
            else:
                state = _uniform(part, windows.prefill)
                right &= state is not None
                even &= state is None or tails.setdefault(index, state) is state
        if not right:
            wrong.append(expert)
        elif not even:
            uneven.append(expert)
    return Seen(tails, wrong, uneven)


def checked(data: torch.Tensor, expected: ProvenanceMap) -> torch.Tensor:
    """Raises AdapterError unless a stack's read is uint8 of the shape that it declared itself."""
    due = expected.shape[1:]
    if not isinstance(data, torch.Tensor) or data.dtype is not torch.uint8 or tuple(data.shape) != due:
        got = f"{tuple(data.shape)} {data.dtype}" if isinstance(data, torch.Tensor) else type(data).__name__
        raise AdapterError(f"{expected.parameter}: the stack read {got}; {due} uint8 was due by its own info")
    return data


def _source(box: Box, expert: int, windows: Windows) -> torch.Tensor:
    first = box.at(expert, box.rows.start, box.cols.start)
    assert first is not None
    whole = windows.source(first.shard, first.expert)
    return whole[first.row : first.row + len(box.rows), first.col : first.col + len(box.cols)]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bytes? numpy's comparison, since torch's takes three times as long."""
    left, right = _words(a, b)
    return np.array_equal(left, right)


def _uniform(part: torch.Tensor, prefill: int) -> State | None:
    (words,) = _words(part)
    if not words.any():
        return State.ZERO
    if words.dtype == np.int64:
        prefill = int.from_bytes(bytes([prefill]) * words.itemsize, "little", signed=True)
    return State.UNTOUCHED if bool((words == prefill).all()) else None


def _words(*parts: torch.Tensor) -> list[np.ndarray]:
    """The same bytes as int64 where the rows of all parts allow it: eight times fewer comparisons."""
    found = [part.numpy() for part in parts]
    if all(part.shape[-1] % 8 == 0 and part.strides[-1] == 1 for part in found):
        words = [part.view(np.int64) for part in found]
        if all(part.flags.aligned for part in words):
            return words
    return found


def seen(expected: ProvenanceMap, tails: dict[int, State]) -> ProvenanceMap:
    """The expected map with its tails as they were found."""
    boxes = [Box(b.experts, b.rows, b.cols, tails.get(i, b.state), b.origin) for i, b in enumerate(expected.boxes)]
    whole = Span(0, expected.shape[0])
    assert all(box.experts == whole for box in boxes)
    return ProvenanceMap(
        expected.parameter, expected.rank, expected.shape, boxes, method="fingerprint of all experts, some loaded again"
    )
