"""An ExpertsLayer in memory whose loader makes planted moves, and which knows itself where each byte came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from conformance.stacks.protocols import ExpertsInfo, ParameterInfo
from tests.provenance.cells import UNTOUCHED, ZERO, number


class Copy(NamedTuple):
    """source[row : row + height, col : col + width] to (to_expert, to_row, to_col), as far as both reach."""

    to_expert: int
    to_row: int
    to_col: int
    row: int
    col: int
    height: int
    width: int


class Fill(NamedTuple):
    """A constant byte over a block of the destination."""

    to_expert: int
    to_row: int
    to_col: int
    height: int
    width: int
    value: int


#: The number of a constant byte c in 1..255 is CONSTANT - c.
CONSTANT = -100
#: (shard, expert) -> what loading that tensor does
Program = Callable[[str, int], list[Copy | Fill]]


class MemoryLayer:
    """One parameter `w` of shape (experts, rows, cols). `truth` numbers every byte as tests.provenance.cells does.

    Of constant bytes, 0 is ZERO; what a fill left and no load has changed is UNTOUCHED.
    """

    def __init__(self, shape: tuple[int, int, int], shards: tuple[str, ...], program: Program, name: str = "w"):
        self.data = torch.zeros(shape, dtype=torch.uint8)
        self.truth = np.full(shape, ZERO, dtype=np.int64)
        self.shards, self.program = shards, program
        self.loads: list[tuple[str, int]] = []
        self.info = ExpertsInfo({name: ParameterInfo(shape[1], shape[2], "uint8")}, 0, "memory")

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def initial(self, parameter: str, expert: int) -> torch.Tensor:
        return torch.zeros(self.data.shape[1:], dtype=torch.uint8)

    def fill(self, parameter: str, value: int) -> None:
        self.data.fill_(value)
        self.truth[:] = UNTOUCHED

    def load(self, parameter: str, shard: str, expert: int, source: torch.Tensor) -> None:
        self.loads.append((shard, expert))
        rows, cols = source.shape
        numbers = number(self.shards.index(shard), expert, np.arange(rows)[:, None], np.arange(cols)[None, :])
        for move in self.program(shard, expert):
            to = self.data[move.to_expert, move.to_row :, move.to_col :]
            truth = self.truth[move.to_expert, move.to_row :, move.to_col :]
            if isinstance(move, Fill):
                to[: move.height, : move.width] = move.value
                truth[: move.height, : move.width] = _constant(move.value)
                continue
            height = min(move.height, rows - move.row, to.shape[0])
            width = min(move.width, cols - move.col, to.shape[1])
            if height > 0 and width > 0:
                to[:height, :width] = source[move.row : move.row + height, move.col : move.col + width]
                truth[:height, :width] = numbers[move.row : move.row + height, move.col : move.col + width]

    def read(self, parameter: str, expert: int) -> torch.Tensor:
        return self.data[expert]

    def write(self, parameter: str, expert: int, data: torch.Tensor) -> None:
        self.data[expert] = data

    def close(self) -> None: ...


def _constant(value: int) -> int:
    return ZERO if value == 0 else CONSTANT - value
