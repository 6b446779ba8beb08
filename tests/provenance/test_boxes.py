"""Box arithmetic against plain numbers: cutting, joining, and the exact difference of two maps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import expected
from conformance.geometry import Geometry
from conformance.provenance.boxes import Box, Origin, ProvenanceMap, Span, State, differences, merge_experts
from conformance.stacks.protocols import SHARDS, ParameterInfo
from tests.provenance.cells import NOTHING, UNKNOWN, UNTOUCHED, ZERO, number, one_box_a_cell, paint, runs

W13 = ("w1", "w3")
_CELL = st.sampled_from([ZERO, UNTOUCHED, UNKNOWN, number(0, 0, 0, 0), number(0, 1, 0, 0), number(1, 0, 2, 3)])


@st.composite
def _cells(draw, shape=None):
    """Numbers of a small destination: blocks that run on in step, and single strange bytes."""
    shape = shape or draw(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6)))
    cells = np.full(shape, ZERO, dtype=np.int64)
    experts, rows, cols = np.indices(shape)
    if draw(st.booleans()):
        shift = draw(st.integers(0, 3))
        cells[:] = number(0, experts, rows + shift, cols)
    for place, value in draw(
        st.lists(st.tuples(st.tuples(*(st.integers(0, n - 1) for n in shape)), _CELL), max_size=6)
    ):
        cells[place] = value
    return cells


@given(_cells(), st.data())
def test_differences_finds_each_byte_and_invents_none(a, data):
    """Whatever the cut: single cells against runs."""
    b = data.draw(_cells(a.shape))
    assert sum(d.size for d in differences(runs(a, W13), runs(b, W13))) == (a != b).sum()
    for want, have in ((one_box_a_cell(a, W13), runs(b, W13)), (runs(a, W13), one_box_a_cell(b, W13))):
        found = differences(want, have)
        wrong = {tuple(int(n) for n in place) for place in np.argwhere(a != b)}
        assert sum(d.size for d in found) == len(wrong)
        assert {(d.expert, d.row, d.col) for d in found} <= wrong
        assert [(d.expert, d.row, d.col) for d in found] == sorted((d.expert, d.row, d.col) for d in found)
        for d in found:
            assert d.size == 1
            for cells, origin in ((a, d.expected_origin), (b, d.got_origin)):
                value = int(cells[d.expert, d.row, d.col])
                due = number(W13.index(origin.shard), origin.expert, origin.row, origin.col) if origin else None
                assert (value if value >= 0 else None) == due


@given(_cells())
def test_equal_maps_differ_nowhere(cells):
    assert differences(one_box_a_cell(cells, W13), runs(cells, W13)) == []
    assert differences(runs(cells, W13), one_box_a_cell(cells, W13)) == []


def _due(parameter: str) -> ProvenanceMap:
    g = Geometry(
        name="small",
        model_type="",
        hidden_size=32,
        attention_heads=8,
        kv_heads=1,
        head_dim=8,
        intermediate=256,
        experts=2,
        top_k=1,
        vocab=64,
        layers=1,
    )
    info = {"w13_weight_scale": ParameterInfo(256, 2, "uint8"), "w2_weight": ParameterInfo(33, 64, "uint8")}
    return expected.experts_map(g, 3, 2, parameter, info[parameter], 2)


@pytest.mark.parametrize("parameter", ["w13_weight_scale", "w2_weight"])
@pytest.mark.parametrize("value", [ZERO, UNTOUCHED, UNKNOWN, number(0, 0, 200, 0), number(0, 1, 3, 100)])
def test_every_single_wrong_byte_of_a_due_map_is_found(parameter, value):
    due = _due(parameter)
    shards = SHARDS[parameter]
    cells = paint(due, shards)
    places = [tuple(int(n) for n in place) for place in np.argwhere(cells != value)]
    for place in places[:: max(1, len(places) // 20)]:
        wrong = cells.copy()
        wrong[place] = value
        (found,) = differences(due, runs(wrong, shards))
        assert (found.expert, found.row, found.col, found.size) == (*place, 1)
        assert (found.expected_origin is None) == (cells[place] == ZERO)
        assert (found.got_origin is None) == (value < 0)


def _map(boxes: list[Box], shape: tuple[int, int, int] = (1, 2, 4)) -> ProvenanceMap:
    return ProvenanceMap("w", 0, shape, boxes)


_ZERO = Box(Span(0, 1), Span(0, 2), Span(0, 4), State.ZERO)


def test_what_only_one_map_covers_is_a_difference():
    half = Box(Span(0, 1), Span(0, 2), Span(0, 3), State.ZERO)
    (found,) = differences(_map([_ZERO]), _map([half]))
    assert (found.size, found.got, found.got_state) == (2, "nothing measured", State.UNKNOWN)
    (found,) = differences(_map([half]), _map([_ZERO]))
    assert (found.size, found.expected, found.got) == (2, "nothing", "zero")


def test_nothing_measured_at_all():
    (found,) = differences(_map([_ZERO]), _map([]))
    assert (found.expert, found.row, found.col, found.size) == (0, 0, 0, 8)


def test_words():
    right = Box(Span(0, 1), Span(0, 2), Span(0, 4), State.SOURCE, Origin("w2", 0, 0, 352))
    late = Box(Span(0, 1), Span(0, 2), Span(0, 4), State.SOURCE, Origin("w2", 0, 0, 384))
    (found,) = differences(_map([right]), _map([late]))
    assert found.expected == "checkpoint byte w2[expert 0, row 0, byte 352]"
    assert found.got == "checkpoint byte w2[expert 0, row 0, byte 384]"
    assert found.size == 8
    (found,) = differences(_map([_ZERO]), _map([Box(Span(0, 1), Span(0, 2), Span(0, 4), State.UNTOUCHED)]))
    assert (found.expected, found.got) == ("zero", "untouched (never written)")


@given(_cells())
def test_merge_experts_keeps_every_byte(cells):
    fine = one_box_a_cell(cells, W13)
    merged = merge_experts(fine.boxes)
    np.testing.assert_array_equal(paint(_map(merged, cells.shape), W13), cells)
    chains = {(b.rows, b.cols): [] for b in merged}
    for box in merged:
        chains[box.rows, box.cols].append(box)
    for chain in chains.values():
        for a, b in pairwise(chain):
            on = a.at(b.experts.start, b.rows.start, b.cols.start)
            assert (a.experts.stop, a.state, on) != (b.experts.start, b.state, b.origin), f"{a} and {b} are one"


def test_all_experts_of_a_shard_are_one_box():
    def boxes(expert: int) -> list[Box]:
        slot = Span(expert, expert + 1)
        return [
            Box(slot, Span(0, 4), Span(0, 3), State.SOURCE, Origin("w2", expert, 0, 352)),
            Box(slot, Span(0, 4), Span(3, 4), State.ZERO),
        ]

    merged = merge_experts([box for expert in range(256) for box in boxes(expert)])
    assert [str(b.experts) for b in merged] == ["[0, 256)", "[0, 256)"]
    one_missing = merge_experts([box for expert in range(256) if expert != 7 for box in boxes(expert)])
    assert [str(b.experts) for b in one_missing] == ["[0, 7)", "[0, 7)", "[8, 256)", "[8, 256)"]


@given(_cells(), st.data())
def test_of_experts_keeps_those_and_no_others(cells, data):
    experts = sorted(data.draw(st.sets(st.integers(0, cells.shape[0] - 1), min_size=1)))
    whole = _map(merge_experts(runs(cells, W13).boxes), cells.shape)
    cut = whole.of_experts(experts)
    due = np.full(cells.shape, NOTHING)
    due[experts] = cells[experts]
    np.testing.assert_array_equal(paint(cut, W13), due)
    assert cut.covered == experts
    assert whole.covered == list(range(cells.shape[0]))


@given(_cells(), st.data())
def test_within_cuts_to_a_region(cells, data):
    def span(n: int) -> Span:
        return Span(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))))

    rows, cols = span(cells.shape[1]), span(cells.shape[2])
    whole = _map(merge_experts(runs(cells, W13).boxes), cells.shape)
    due = np.full(cells.shape, NOTHING)
    place = np.s_[:, rows.start : rows.stop, cols.start : cols.stop]
    due[place] = cells[place]
    np.testing.assert_array_equal(paint(_map(list(whole.within(rows, cols)), cells.shape), W13), due)


@given(*[st.integers(0, 9)] * 4)
def test_spans_meet_where_their_numbers_do(a, b, c, d):
    one, other = Span(min(a, b), max(a, b)), Span(min(c, d), max(c, d))
    both = set(range(one.start, one.stop)) & set(range(other.start, other.stop))
    meet = one & other
    assert set(range(meet.start, meet.stop)) == both if meet else not both
