"""The fast pass: load pseudo-random bytes for every expert and compare with what the expected map demands.

Source bytes lie in 1..254, so a byte that is zero (0) or was never written (255) always shows; a misplaced run
of n bytes agrees by chance with probability about 254**-n. Expert e's tensor is a window into one random buffer
at a random offset of its own: no expert shares its bytes with another, and nothing is copied to make it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from conformance.provenance.boxes import Box, ProvenanceMap, Span, State
from conformance.provenance.positions import PREFILL

if TYPE_CHECKING:
    from conformance.stacks.protocols import ExpertsLayer

_STRIDE = 64  # windows start on whole cache lines, so that rows can be compared as int64
_WORD = 8


class Windows:
    """Random checkpoint tensors (rows, cols) of every (shard, expert), cut from one shared buffer."""

    def __init__(self, layer: ExpertsLayer, shape: tuple[int, int], shards: tuple[str, ...], experts: int, seed: int):
        self.shape = shape
        rng = torch.Generator().manual_seed(seed)
        slots = 16 * len(shards) * experts
        order = torch.randperm(slots, generator=rng)[: len(shards) * experts].view(len(shards), experts)
        self._offsets = dict(zip(shards, (order * _STRIDE).tolist(), strict=True))
        self._buffer = layer.allocate(shape[0] * shape[1] + slots * _STRIDE)
        self._buffer.random_(1, PREFILL, generator=rng)

    def source(self, shard: str, expert: int) -> torch.Tensor:
        offset = self._offsets[shard][expert]
        return self._buffer[offset : offset + self.shape[0] * self.shape[1]].view(self.shape)


def load_all(layer: ExpertsLayer, parameter: str, windows: Windows, shards: tuple[str, ...], experts: int) -> None:
    """Prefill, then load every expert, as a checkpoint is loaded: all of them before anything is read."""
    layer.fill(parameter, PREFILL)
    for shard in shards:
        for expert in range(experts):
            layer.load(parameter, shard, expert, windows.source(shard, expert))


def verify(layer: ExpertsLayer, expected: ProvenanceMap, windows: Windows) -> tuple[dict[int, State], list[int]]:
    """Compare every expert with the expected map.

    Returns the state of the zero boxes by index (ZERO where all experts hold zeros, UNTOUCHED where all still
    hold the prefill), and the experts that differ. Only an empty list vouches for the map.
    """
    tails: dict[int, State] = {}
    wrong = []
    for expert in range(expected.shape[0]):
        data = layer.read(expected.parameter, expert)
        right = True
        for index, box in enumerate(expected.boxes):
            part = data[box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]
            if box.state is State.SOURCE:
                right &= _equal(part, _source(box, expert, windows))
            else:
                state = _uniform(part)
                right &= state is not None and tails.setdefault(index, state) is state
        if not right:
            wrong.append(expert)
    return tails, wrong


def _source(box: Box, expert: int, windows: Windows) -> torch.Tensor:
    first = box.at(expert, box.rows.start, box.cols.start)
    assert first is not None
    whole = windows.source(first.shard, first.expert)
    return whole[first.row : first.row + len(box.rows), first.col : first.col + len(box.cols)]


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(*_words(a, b))


def _uniform(part: torch.Tensor) -> State | None:
    (words,) = _words(part)
    if not bool(words.any()):
        return State.ZERO
    prefill = -1 if words.dtype is torch.int64 else PREFILL
    return State.UNTOUCHED if bool((words == prefill).all()) else None


def _words(*parts: torch.Tensor) -> list[torch.Tensor]:
    """The same bytes as int64 where the rows of all parts allow it: eight times fewer comparisons."""
    aligned = all(
        part.stride(-1) == 1
        and all(n % _WORD == 0 for n in (part.shape[-1], part.stride(0), part.storage_offset(), part.data_ptr()))
        for part in parts
    )
    return [part.view(torch.int64) for part in parts] if aligned else list(parts)


def seen(expected: ProvenanceMap, tails: dict[int, State]) -> ProvenanceMap:
    """The expected map with its tails as they were found."""
    boxes = [Box(b.experts, b.rows, b.cols, tails.get(i, b.state), b.origin) for i, b in enumerate(expected.boxes)]
    whole = Span(0, expected.shape[0])
    assert all(box.experts == whole for box in boxes)
    return ProvenanceMap(expected.parameter, expected.rank, expected.shape, boxes, method="fingerprint, all experts")
