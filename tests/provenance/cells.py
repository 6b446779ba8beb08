"""Maps as plain numbers, one a destination byte, so that tests can compare them without any box arithmetic.

A checkpoint byte is numbered (shard, expert, row, byte) -> one int64; zero, untouched and unknown have numbers below 0.
"""

from __future__ import annotations

import numpy as np

from conformance.provenance.boxes import Box, Origin, ProvenanceMap, Span, State

ZERO, UNTOUCHED, UNKNOWN, NOTHING = -1, -2, -3, -9
STATES = {State.ZERO: ZERO, State.UNTOUCHED: UNTOUCHED, State.UNKNOWN: UNKNOWN}
_BASE = 1 << 12


def number(shard: int, expert: int, row, col):
    """One number a checkpoint byte; `row` and `col` may be arrays."""
    return ((shard * _BASE + expert) * _BASE + row) * _BASE + col


def origin(cell: int, shards: tuple[str, ...]) -> Origin:
    rest, col = divmod(cell, _BASE)
    rest, row = divmod(rest, _BASE)
    shard, expert = divmod(rest, _BASE)
    return Origin(shards[shard], expert, row, col)


def paint(seen: ProvenanceMap, shards: tuple[str, ...]) -> np.ndarray:
    """(experts, rows, cols) of numbers. Asserts that no two boxes overlap; NOTHING where there is no box."""
    cells = np.full(seen.shape, NOTHING, dtype=np.int64)
    for box in seen.boxes:
        assert box.size > 0
        for expert in range(box.experts.start, box.experts.stop):
            place = cells[expert, box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]
            assert place.shape == (len(box.rows), len(box.cols)), f"{box} reaches beyond {seen.shape}"
            assert (place == NOTHING).all(), f"{box} overlaps another box"
            if box.origin is None:
                place[:] = STATES[box.state]
                continue
            assert box.state is State.SOURCE
            rows = np.arange(box.origin.row, box.origin.row + len(box.rows))[:, None]
            cols = np.arange(box.origin.col, box.origin.col + len(box.cols))[None, :]
            from_expert = box.origin.expert + expert - box.experts.start
            place[:] = number(shards.index(box.origin.shard), from_expert, rows, cols)
    return cells


def one_box_a_cell(cells: np.ndarray, shards: tuple[str, ...]) -> ProvenanceMap:
    """The map of those numbers, as finely cut as can be."""
    states = {value: state for state, value in STATES.items()}
    boxes = [
        Box(
            Span(e, e + 1),
            Span(r, r + 1),
            Span(c, c + 1),
            states.get(int(value), State.SOURCE),
            origin(int(value), shards) if value >= 0 else None,
        )
        for (e, r, c), value in np.ndenumerate(cells)
        if value != NOTHING
    ]
    return ProvenanceMap("w", 0, cells.shape, boxes)


def runs(cells: np.ndarray, shards: tuple[str, ...]) -> ProvenanceMap:
    """The same map, cells of a row joined where they continue each other: another cut of the same numbers."""
    states = {value: state for state, value in STATES.items()}
    boxes = []
    for e, r in np.ndindex(cells.shape[:2]):
        row, left = cells[e, r], 0
        for right in range(1, len(row) + 1):
            step = 1 if row[right - 1] >= 0 else 0
            if right < len(row) and row[right] == row[right - 1] + step and (row[right] >= 0) == (row[left] >= 0):
                continue
            value = int(row[left])
            if value != NOTHING:
                state = states.get(value, State.SOURCE)
                source = origin(value, shards) if value >= 0 else None
                boxes.append(Box(Span(e, e + 1), Span(r, r + 1), Span(left, right), state, source))
            left = right
    return ProvenanceMap("w", 0, cells.shape, boxes)
