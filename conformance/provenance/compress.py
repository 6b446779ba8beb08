"""A matrix seen in row chunks, kept as the few different rows or columns that it has.

What a digit pass leaves in a right parameter is constant along one axis: all columns alike, or long runs of equal rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

#: Different neighbouring rows (or columns) that are told apart; a parameter with more is scattered.
MOST = 2048


#: Elements that are compared at a time: one byte each for the answers, where something differs.
_AT_ONCE = 1 << 20


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
        changed = _changed_rows(chunk)
        first = [0] if not self.lines or not torch.equal(self.lines[-1], chunk[0]) else []
        starts = first + changed
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
        starts = [0, *_changed_columns(chunk)]
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


def _changed_rows(chunk: torch.Tensor) -> list[int]:
    """The rows that differ from the one above."""
    wide = _words(chunk)
    found: list[int] = []
    for rows in _blocks(wide):
        below, above = wide[rows][1:], wide[rows][:-1]
        if not torch.equal(below, above):
            found += (rows.start + 1 + (below != above).any(1).nonzero().flatten()).tolist()
    return found


def _changed_columns(chunk: torch.Tensor) -> list[int]:
    """The columns that differ from the one to the left."""
    differ = torch.zeros(max(chunk.shape[1] - 1, 0), dtype=torch.bool)
    wide = _words(chunk)
    first = _words(chunk[:, :1].expand(-1, chunk.shape[1] // wide.shape[1]).contiguous())
    for rows in _blocks(chunk):
        if not torch.equal(wide[rows], first[rows].expand_as(wide[rows])):
            differ |= (chunk[rows, 1:] != chunk[rows, :-1]).any(0)
    return (differ.nonzero().flatten() + 1).tolist()


def _words(chunk: torch.Tensor) -> torch.Tensor:
    """(rows, n): eight bytes at a time, where rows are made of them; else as it is. Four times as fast to compare."""
    size = chunk.element_size()
    whole = chunk.is_contiguous() and (chunk.shape[1] * size) % 8 == 0 and (chunk.storage_offset() * size) % 8 == 0
    return chunk.view(torch.int64) if whole and chunk.numel() else chunk


def _blocks(chunk: torch.Tensor) -> Iterator[slice]:
    """Blocks of at most so many elements at a time, each beginning with the last row of the one before."""
    step = max(1, _AT_ONCE // max(1, chunk.shape[1]))
    for top in range(0, max(1, chunk.shape[0] - 1), step):
        yield slice(top, min(top + step + 1, chunk.shape[0]))
