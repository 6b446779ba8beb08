"""The trace of a whole model names the source of every element, however a loader places it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.provenance import compress, model_trace
from conformance.provenance.boxes import Origin, Span, State
from conformance.stacks.model_protocol import Coded, ModelInfo, Stored


class Toy:
    """A model of one parameter; `place(tensors, target)` copies out of {name: tensor} into it."""

    def __init__(self, shape, place, dtype="uint8"):
        self.info = ModelInfo({"p": Stored(dtype, shape)}, "toy")
        self._target = torch.zeros(shape, dtype=getattr(torch, dtype))
        self._place = place

    def fill(self, value):
        self._target.view(-1).view(torch.uint8).fill_(value)

    def load(self, tensors: list[Coded]):
        kinds = {"U8": torch.uint8, "BF16": torch.bfloat16}
        made = {}
        for one in tensors:
            line = torch.frombuffer(bytearray(one.codes), dtype=torch.uint8).view(kinds[one.dtype])
            made[one.name] = line.view([-1 if d == one.dim else 1 for d in range(len(one.shape))]).expand(one.shape)
        self._place(made, self._target)

    def read(self, parameter, first, last):
        return self._target.view(-1).view(torch.uint8)[first:last]

    def close(self):
        pass


def _boxes(toy, checkpoint):
    return model_trace.trace(toy, checkpoint, 0)["p"].boxes


@given(st.integers(1, 600), st.integers(1, 40), st.integers(0, 599), st.integers(1, 600), st.data())
def test_any_cut_along_rows_is_one_box_and_a_tail(rows, cols, start, size, data):
    start = min(start, rows - 1)
    size = min(size, rows - start)
    tail = data.draw(st.integers(0, 5))

    def place(tensors, target):
        target.zero_()
        target[:size] = tensors["t"][start : start + size]

    found = _boxes(Toy((size + tail, cols), place), {"t": ("U8", (rows, cols)), "other": ("U8", (2, 2))})
    assert found[0].rows == Span(0, size)
    assert found[0].origin == Origin("t", 0, start, 0)
    assert [(b.rows, b.state) for b in found[1:]] == ([(Span(size, size + tail), State.ZERO)] if tail else [])


def test_two_tensors_one_below_the_other_and_columns_cut():
    def place(tensors, target):
        target[:3] = tensors["a"][:, 4:7]
        target[3:8, :2] = tensors["b"][5:10, :2]

    found = _boxes(Toy((8, 3), place), {"a": ("U8", (3, 9)), "b": ("U8", (300, 2))})
    assert [(b.rows, b.cols, b.state, b.origin) for b in found] == [
        (Span(0, 3), Span(0, 3), State.SOURCE, Origin("a", 0, 0, 4)),
        (Span(3, 8), Span(0, 2), State.SOURCE, Origin("b", 0, 5, 0)),
        (Span(3, 8), Span(2, 3), State.UNTOUCHED, None),
    ]


def test_reversed_rows_are_single_rows():
    found = _boxes(Toy((4, 2), lambda t, target: target.copy_(t["a"].flip(0))), {"a": ("U8", (4, 2))})
    assert [b.origin.row for b in found] == [3, 2, 1, 0]


def test_a_bf16_tensor_over_a_quarter_million_rows():
    rows = 252 * 252 + 7

    def place(tensors, target):
        target.copy_(tensors["t"][-5:])

    found = _boxes(Toy((5, 2), place, "bfloat16"), {"t": ("BF16", (rows, 2))})
    assert [b.origin for b in found] == [Origin("t", 0, rows - 5, 0)]


def test_a_sum_of_two_tensors_is_unknown():
    def place(tensors, target):
        target.copy_(tensors["a"] + tensors["b"])

    (found,) = _boxes(Toy((2, 2), place), {"a": ("U8", (2, 2)), "b": ("U8", (2, 2))})
    assert found.state is State.UNKNOWN or found.origin != Origin("a", 0, 0, 0)


def test_scattered_elements_are_unknown_and_do_not_take_for_ever():
    order = torch.randperm(3000 * 4, generator=torch.Generator().manual_seed(0))

    def place(tensors, target):
        target.copy_(tensors["a"].reshape(-1)[order].view(3000, 4))

    (found,) = _boxes(Toy((3000, 4), place), {"a": ("U8", (3000, 4))})
    assert found.state is State.UNKNOWN


@given(st.integers(1, 9), st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_chunks_do_not_matter_to_equal_rows_and_columns(step, values):
    matrix = torch.tensor(values, dtype=torch.uint8)[:, None].expand(-1, 5).contiguous()
    rows, columns = compress.EqualRows(), compress.EqualColumns()
    for top in range(0, len(values), step):
        rows.add(matrix[top : top + step])
        columns.add(matrix[top : top + step])
    again = [int(rows.lines[max(i for i, s in enumerate(rows.starts) if s <= r)][0]) for r in range(len(values))]
    assert again == values
    assert columns.starts == [0]
    assert columns.lines[0].tolist() == values


def test_too_many_different_rows_are_scattered():
    with pytest.raises(compress.Scattered):
        compress.EqualRows().add(torch.arange(compress.MOST + 1)[:, None].contiguous())
