"""The fast pass: one wrong byte in one expert is enough, tails have their state, and word width does not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.provenance import fingerprint
from conformance.provenance.boxes import Box, Origin, ProvenanceMap, Span, State
from tests.provenance.layers import Copy, Fill, MemoryLayer

EXPERTS = 5


def _case(rows: int, cols: int, width: int, start: int, size: int, hidden: int):
    """W2 of one rank: bytes [start, start + size) of `cols` land in `width`, `hidden` rows hold `rows`."""
    whole = Span(0, EXPERTS)
    boxes = [Box(whole, Span(0, rows), Span(0, size), State.SOURCE, Origin("w2", 0, 0, start))]
    if width > size:
        boxes.append(Box(whole, Span(0, rows), Span(size, width), State.ZERO))
    if hidden > rows:
        boxes.append(Box(whole, Span(rows, hidden), Span(0, width), State.ZERO))
    due = ProvenanceMap("w", 0, (EXPERTS, hidden, width), boxes)

    def right(shard: str, expert: int) -> list[Copy | Fill]:
        return [Fill(expert, 0, 0, hidden, width, 0), Copy(expert, 0, 0, 0, start, rows, size)]

    return due, right


def _verify(due: ProvenanceMap, program, shape: tuple[int, int], spoil=None):
    layer = MemoryLayer(due.shape, ("w2",), program)
    experts = list(range(EXPERTS))
    windows = fingerprint.Windows(layer, shape, ("w2",), experts, seed=1)
    layer.fill("w", windows.prefill)
    for expert in experts:
        layer.load("w", "w2", expert, windows.source("w2", expert))
    if spoil:
        spoil(layer.data)
    return fingerprint.verify(layer, due, windows, experts)


#: (rows, source bytes a row, destination bytes a row, first byte, bytes, destination rows)
WIDTHS = {
    "words everywhere": (6, 64, 24, 16, 16, 8),
    "nothing in words": (6, 21, 11, 5, 7, 7),
    "words here, bytes there": (6, 23, 16, 8, 8, 6),
    "bytes here, words there": (6, 24, 11, 8, 8, 6),
    "from an odd byte": (6, 64, 16, 3, 16, 6),
    "no tail": (6, 64, 16, 16, 16, 6),
    "one row": (1, 64, 16, 16, 8, 1),
    "one byte": (1, 1, 1, 0, 1, 1),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_a_right_load_is_vouched_for(name):
    rows, cols, width, start, size, hidden = WIDTHS[name]
    due, right = _case(rows, cols, width, start, size, hidden)
    tails, wrong, uneven = _verify(due, right, (rows, cols))
    assert wrong == uneven == []
    assert tails == {i: State.ZERO for i, box in enumerate(due.boxes) if box.state is State.ZERO}
    assert fingerprint.seen(due, tails).boxes == due.boxes


@pytest.mark.parametrize("name", WIDTHS)
def test_each_single_wrong_byte_of_one_expert_is_found(name):
    """In every place: logical bytes zeroed, unwritten, changed; tail bytes one, garbage, unwritten."""
    rows, cols, width, start, size, hidden = WIDTHS[name]
    due, right = _case(rows, cols, width, start, size, hidden)
    for row in range(hidden):
        for col in range(width):
            logical = row < rows and col < size
            for value in (0, 255, None) if logical else (1, 127, 255):

                def spoil(data: torch.Tensor, row=row, col=col, value=value) -> None:
                    before = int(data[3, row, col])
                    data[3, row, col] = before % 254 + 1 if value is None else value

                assert _verify(due, right, (rows, cols), spoil)[1] == [3], (row, col, value)


_WIDTH = st.integers(0, 40) | st.integers(0, 5).map(lambda n: 8 * n)


@given(st.integers(1, 9), _WIDTH, _WIDTH, _WIDTH, _WIDTH, st.integers(0, 3), st.integers(0, 99))
def test_any_width_either_way(rows, size, start, rest, tail, hidden, place):
    """A right load passes and one flipped byte does not, whatever divides by 8 and whatever does not."""
    size = size or 8
    cols, width = start + size + rest, size + tail
    due, right = _case(rows, cols, width, start, size, rows + hidden)
    assert _verify(due, right, (rows, cols))[1] == []
    row, col = place % rows, place % size

    def spoil(data: torch.Tensor) -> None:
        data[4, row, col] = int(data[4, row, col]) % 254 + 1

    assert _verify(due, right, (rows, cols), spoil)[1] == [4]


ROWS, COLS = 8, 64
DUE, RIGHT = _case(ROWS, COLS, 24, 16, 16, ROWS)

LOADERS = {
    "one byte late": lambda s, e: [*RIGHT(s, e), Copy(e, 0, 0, 0, 17, ROWS, 16)],
    "one row late": lambda s, e: [*RIGHT(s, e), Copy(e, 0, 0, 1, 16, ROWS, 16)],
    "next expert": lambda s, e: RIGHT(s, (e + 1) % EXPERTS),
    "nothing loaded": lambda s, e: [],
    "all zero": lambda s, e: [Fill(e, 0, 0, ROWS, 24, 0)],
    "the tail holds more": lambda s, e: [*RIGHT(s, e), Copy(e, 0, 16, 0, 32, ROWS, 8)],
    "the tail half written": lambda s, e: [*RIGHT(s, e), Fill(e, 0, 20, ROWS, 4, 255)],
    "the tail is garbage": lambda s, e: [*RIGHT(s, e), Fill(e, 0, 16, ROWS, 8, 127)],
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_wrong_loader_is_wrong_for_every_expert(name):
    assert _verify(DUE, LOADERS[name], (ROWS, COLS))[1] == list(range(EXPERTS))


def test_two_experts_swapped():
    swap = {1: 3, 3: 1}
    assert _verify(DUE, lambda s, e: RIGHT(s, swap.get(e, e)), (ROWS, COLS))[1] == [1, 3]


def test_one_expert_in_two_slots():
    """Expert 2 is loaded over expert 4 too: only slot 4 is wrong."""
    twice = {2: [2, 4], 4: []}
    program = lambda s, e: [move for slot in twice.get(e, [e]) for move in RIGHT(s, slot)]  # noqa: E731
    assert _verify(DUE, program, (ROWS, COLS))[1] == [4]


def test_unwritten_tails_are_told_from_zeros():
    tails, wrong, uneven = _verify(DUE, lambda s, e: RIGHT(s, e)[1:], (ROWS, COLS))
    assert (tails, wrong, uneven) == ({1: State.UNTOUCHED}, [], [])
    assert [box.state for box in fingerprint.seen(DUE, tails).boxes] == [State.SOURCE, State.UNTOUCHED]


def test_tails_that_differ_between_experts_are_looked_at():
    seen = _verify(DUE, lambda s, e: RIGHT(s, e)[1:] if e == 2 else RIGHT(s, e), (ROWS, COLS))
    assert (seen.wrong, seen.uneven, seen.clean) == ([], [2], False)


def test_sources_are_neither_zero_nor_prefill_and_no_two_are_alike():
    layer = MemoryLayer((4, 8, 64), ("w1", "w3"), lambda s, e: [])
    windows = fingerprint.Windows(layer, (8, 64), ("w1", "w3"), [0, 1, 2, 3], seed=7)
    tensors = [windows.source(shard, expert) for shard in ("w1", "w3") for expert in range(4)]
    assert all(int(t.min()) >= 1 and int(t.max()) <= 254 and t.is_contiguous() for t in tensors)
    assert len({bytes(t.flatten().tolist()) for t in tensors}) == len(tensors)
    again = fingerprint.Windows(layer, (8, 64), ("w1", "w3"), [0, 1, 2, 3], seed=7)
    assert torch.equal(again.source("w3", 2), windows.source("w3", 2))
    other = fingerprint.Windows(layer, (8, 64), ("w1", "w3"), [0, 1, 2, 3], seed=8)
    assert not torch.equal(other.source("w3", 2), windows.source("w3", 2))
