"""A matrix seen in row chunks, kept as the few different rows or columns that it has.

What a digit pass leaves in a right parameter is constant along one axis: all columns alike, or long runs of equal rows.
"""

from __future__ import annotations

import torch

#: Different neighbouring rows (or columns) that are told apart; a parameter with more is scattered.
MOST = 2048


class Scattered(Exception):
    """More different rows or columns than any way of cutting a tensor leaves."""


class EqualRows:
    """Runs of equal neighbouring rows: `starts`, and one row of each run."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.lines: list[torch.Tensor] = []
        self._seen = 0

    def add(self, chunk: torch.Tensor) -> None:
        """chunk: (rows, cols), the rows that follow those seen so far. Raises Scattered."""
        changed = (chunk[1:] != chunk[:-1]).any(1).nonzero().flatten() + 1
        first = [0] if not self.lines or not torch.equal(self.lines[-1], chunk[0]) else []
        starts = first + changed.tolist()
        if len(starts) + len(self.starts) > MOST:
            raise Scattered
        self.starts += [self._seen + s for s in starts]
        self.lines += [chunk[s].clone() for s in starts]
        self._seen += chunk.shape[0]


class EqualColumns:
    """Runs of equal neighbouring columns: `starts`, and `lines` (runs, rows) once everything is seen."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self._parts: list[tuple[list[int], torch.Tensor]] = []

    def add(self, chunk: torch.Tensor) -> None:
        changed = (chunk[:, 1:] != chunk[:, :-1]).any(0).nonzero().flatten() + 1
        starts = [0, *changed.tolist()]
        if len(starts) > MOST:
            raise Scattered
        self._parts.append((starts, chunk[:, starts].clone()))
        self.starts = sorted({*self.starts, *starts})
        if len(self.starts) > MOST:
            raise Scattered

    @property
    def lines(self) -> list[torch.Tensor]:
        """One column of each run, over all rows."""
        columns = []
        for start in self.starts:
            pieces = []
            for starts, lines in self._parts:
                run = max(i for i, s in enumerate(starts) if s <= start)
                pieces.append(lines[:, run])
            columns.append(torch.cat(pieces))
        return columns
