"""Checkpoints for looking through a conversion: bytes that tell where they stand, and random ones made cheaply."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from conformance.geometry import Geometry
from conformance.provenance import positions
from conformance.provenance.checkpoint import Checkpoint, Rule
from conformance.stacks.protocols import SHARDS
from references import seeded

if TYPE_CHECKING:
    from conformance.provenance.boxes import Span

TENSORS = ("w1", "w1_scale", "w3", "w3_scale", "w2", "w2_scale")


class Place(NamedTuple):
    """Digit `digit` of a byte's place within its tensor, `cols` bytes a row: alike for every tensor and expert."""

    cols: int
    digit: int

    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        row = torch.arange(rows.start, rows.stop)[:, None]
        return positions.digit(row * self.cols + torch.arange(cols.start, cols.stop), self.digit)


class Number(NamedTuple):
    """Digit `digit` of the tensor's number, `first` + expert: the same in every byte."""

    first: int
    digit: int

    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        byte = positions.digit(torch.tensor(self.first + expert), self.digit)
        return byte.expand(len(rows), len(cols))


class Random(NamedTuple):
    """Pseudo-random bytes; one expert's differ from another's by a number for every row."""

    seed: int
    tensor: int

    def block(self, expert: int, rows: Span, cols: Span, device: str) -> torch.Tensor:
        own = seeded.block(self.seed + 1, self.tensor, expert, (rows.start, rows.stop), (0, 1))
        return _base(self.seed, self.tensor, (rows.start, rows.stop), (cols.start, cols.stop)) ^ own


@lru_cache(maxsize=32)
def _base(seed: int, tensor: int, rows: tuple[int, int], cols: tuple[int, int]) -> torch.Tensor:
    return seeded.block(seed, tensor, 0, rows, cols)


def random(seed: int) -> Checkpoint:
    return Checkpoint(*(Random(seed, number) for number in range(len(TENSORS))))


def passes(geometry: Geometry) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """(checkpoints whose bytes tell their places, checkpoints whose bytes tell their tensors): one a digit.

    A parameter's tensors are numbered as `trace.boxes_of` reads them: shard by shard, expert by expert, all of them.
    """
    slab = max(rows * cols for rows, cols in map(geometry.checkpoint_shape, SHARDS))
    numbers = range(positions.passes(2 * geometry.experts))

    def checkpoint(rule: type[Place] | type[Number], index: int) -> Checkpoint:
        return Checkpoint(*(_rule(rule, name, geometry, index) for name in TENSORS))

    return (
        [checkpoint(Place, index) for index in range(positions.passes(slab))],
        [checkpoint(Number, index) for index in numbers],
    )


def _rule(kind: type[Place] | type[Number], name: str, geometry: Geometry, index: int) -> Rule:
    shard, _, scale = name.partition("_")
    parameter = ("w2_weight" if shard == "w2" else "w13_weight") + ("_scale" if scale else "")
    if kind is Place:
        return Place(geometry.checkpoint_shape(parameter)[1], index)
    return Number(SHARDS[parameter].index(shard) * geometry.experts, index)
