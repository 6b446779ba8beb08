"""Digit passes against a layer that knows the truth: arbitrary moves, compared byte for byte."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.provenance.boxes import ProvenanceMap
from conformance.provenance.trace import trace
from tests.provenance.cells import UNKNOWN, paint
from tests.provenance.layers import CONSTANT, Copy, Fill, MemoryLayer

SHARDS = ("w1", "w3")


def _check(layer: MemoryLayer, shards: tuple[str, ...], shape: tuple[int, int], experts: list[int]) -> None:
    seen = trace(layer, "w", 0, shards, shape, experts)
    cells, truth = paint(seen, shards)[experts], layer.truth[experts].copy()
    for constant in np.unique(truth[truth <= CONSTANT]):
        truth[truth == constant] = _read_as(cells[truth == constant])
    np.testing.assert_array_equal(cells, truth)
    assert seen.traced == experts
    _check_form(seen)


def _read_as(cells: np.ndarray) -> int:
    """What a constant byte 1..254 is taken for: unknown, or the one position whose digits it happens to be all of
    (the fingerprint tells that apart); never zero, never untouched."""
    (value,) = np.unique(cells)
    assert value == UNKNOWN or value >= 0
    return value


def _check_form(seen: ProvenanceMap) -> None:
    """In order, and no box that its right-hand neighbour continues within one checkpoint row."""
    assert seen.boxes == sorted(seen.boxes, key=lambda b: (b.experts, b.rows, b.cols))
    for a, b in pairwise(seen.boxes):
        if (a.experts, a.rows, a.cols.stop, a.state) == (b.experts, b.rows, b.cols.start, b.state):
            assert a.origin is not None, f"{a} and {b} are one"
            assert a.at(b.experts.start, b.rows.start, b.cols.start) != b.origin, f"{a} and {b} are one"


_SMALL = st.integers(0, 12)


@st.composite
def _cases(draw):
    shape = draw(st.tuples(st.integers(1, 13), st.integers(1, 13)))
    loaded = draw(st.tuples(st.integers(1, 4), st.integers(1, 13), st.integers(1, 13)))
    shards = draw(st.sampled_from([("w2",), SHARDS]))
    to = {"to_expert": st.integers(0, loaded[0] - 1), "to_row": _SMALL, "to_col": _SMALL}
    size = {"height": st.integers(1, 13), "width": st.integers(1, 13)}
    copy = st.builds(Copy, row=_SMALL, col=_SMALL, **to, **size)
    fill = st.builds(Fill, value=st.sampled_from([0, 0, 1, 2, 127, 254, 255]), **to, **size)
    tensors = [(shard, expert) for shard in shards for expert in range(loaded[0])]
    moves = {tensor: draw(st.lists(copy | fill, max_size=4)) for tensor in tensors}
    experts = sorted(draw(st.sets(st.integers(0, loaded[0] - 1), min_size=1)))
    return shape, loaded, shards, moves, experts


@given(_cases())
def test_arbitrary_moves(case):
    shape, loaded, shards, moves, experts = case
    layer = MemoryLayer(loaded, shards, lambda shard, expert: moves[shard, expert])
    _check(layer, shards, shape, experts)


def _halves(shard: str, expert: int, rows: int = 24, cols: int = 20) -> list[Copy | Fill]:
    return [Copy(expert, 0 if shard == "w1" else rows, 0, 0, 0, rows, cols)]


@pytest.mark.parametrize(
    "program",
    [
        _halves,
        lambda s, e: _halves({"w1": "w3", "w3": "w1"}[s], e),
        lambda s, e: _halves(s, (e + 1) % 3),
        lambda s, e: [Copy(e, 1 if s == "w1" else 25, 3, 0, 0, 23, 17)],
        lambda s, e: [Copy(e, 0 if s == "w1" else 24, 0, 2, 5, 22, 15)],
        lambda s, e: [*_halves(s, e), Fill(e, 7, 0, 1, 20, 0), Fill(e, 30, 19, 1, 1, 255)],
        lambda s, e: [] if e == 1 else _halves(s, e),
        lambda s, e: _halves("w1", e),
    ],
    ids=["right", "swapped", "next-expert", "shifted", "cut-late", "zeroed", "dropped", "both-in-one"],
)
def test_named_moves_in_two_digits(program):
    """2 x 3 x 24 x 20 = 2,880 positions: two digits."""
    _check(MemoryLayer((3, 50, 22), SHARDS, program), SHARDS, (24, 20), [0, 1, 2])


def test_three_digits():
    """256 x 256 = 65,536 bytes: more than two digits hold. The second half is one row and one byte off."""

    def program(shard: str, expert: int) -> list[Copy | Fill]:
        return [Copy(0, 0, 0, 0, 0, 256, 256) if shard == "w1" else Copy(0, 256, 0, 1, 1, 255, 255)]

    layer = MemoryLayer((1, 512, 256), SHARDS, program)
    _check(layer, SHARDS, (256, 256), [0])


def test_a_right_load_is_few_boxes():
    layer = MemoryLayer((3, 50, 22), SHARDS, _halves)
    seen = trace(layer, "w", 0, SHARDS, (24, 20), [0, 1, 2])
    assert len(seen.boxes) == 5  # two halves, their hidden padding, and two rows at the end


def test_two_matrix_rows_do_not_run_into_each_other():
    """A flat copy of 2 x 4 bytes into one row of 8: numbers go on, but the checkpoint's row does not."""
    moves = [Copy(0, 0, 0, 0, 0, 1, 4), Copy(0, 0, 4, 1, 0, 1, 4)]
    layer = MemoryLayer((1, 1, 8), ("w2",), lambda s, e: moves)
    seen = trace(layer, "w", 0, ("w2",), (2, 4), [0])
    assert [(str(b.cols), b.origin.row, b.origin.col) for b in seen.boxes] == [("[0, 4)", 0, 0), ("[4, 8)", 1, 0)]


def test_two_tensors_do_not_run_into_each_other():
    """W3 directly behind W1: the numbers go on from the one's last row to the other's first."""
    layer = MemoryLayer((1, 8, 5), SHARDS, lambda s, e: [Copy(0, 0 if s == "w1" else 4, 0, 0, 0, 4, 5)])
    _check(layer, SHARDS, (4, 5), [0])
    seen = trace(layer, "w", 0, SHARDS, (4, 5), [0])
    assert [(str(b.rows), b.origin.shard, b.origin.row) for b in seen.boxes] == [
        ("[0, 4)", "w1", 0),
        ("[4, 8)", "w3", 0),
    ]
