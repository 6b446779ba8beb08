"""Maps applied to a checkpoint, against byte by byte by hand."""

from __future__ import annotations

import pytest
import torch

from conformance import geometry
from conformance.context import Context
from conformance.faults.catalogue import FAULTS
from conformance.faults.seams import FaultyLoader
from conformance.provenance import loaded
from conformance.provenance.apply import STALE, AppliedWeights
from conformance.provenance.boxes import Box, Origin, ProvenanceMap, Span, State
from conformance.provenance.checkpoint import Checkpoint, Column, Constant, Diagonal, Seeded, Stripes, seeded
from conformance.stacks.protocols import SHARDS, ExpertsRequest, StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target
from references import mxfp4

TINY = geometry.load("deepseek-v4-tiny")
TARGET = Target(TINY, 3, "flashinfer_cutlass", None, (12, 0), (128,), (128,))
PADDED = {"intermediate": 128, "hidden": 128}


def _map(*boxes: Box, shape=(4, 3, 8), traced=()) -> ProvenanceMap:
    return ProvenanceMap("w2_weight", 0, shape, list(boxes), traced=list(traced))


def _applied(seen: ProvenanceMap, zero=frozenset()) -> AppliedWeights:
    return AppliedWeights({"w2_weight": seen}, seeded(7), zero)


def _byte(expert: int, row: int, col: int) -> int:
    return int(seeded(7).w2.block(expert, Span(row, row + 1), Span(col, col + 1), "cpu"))


SOURCE = Box(Span(0, 4), Span(0, 2), Span(1, 6), State.SOURCE, Origin("w2", 2, 5, 30))
ZERO = Box(Span(0, 4), Span(0, 2), Span(6, 8), State.ZERO)
UNTOUCHED = Box(Span(0, 4), Span(2, 3), Span(0, 8), State.UNTOUCHED)


def test_byte_by_byte():
    found = _applied(_map(SOURCE, ZERO, UNTOUCHED)).read("w2_weight", 1, 3)
    assert found.shape == (2, 3, 8)
    for expert in (1, 2):
        for row in range(3):
            for col in range(8):
                if row < 2 and 1 <= col < 6:
                    due = _byte(2 + expert, 5 + row, 30 + col - 1)
                else:
                    due = 0 if row < 2 and col >= 6 else STALE
                assert found[expert - 1, row, col] == due, (expert, row, col)


def test_what_was_never_written_is_zero_only_where_it_began_so():
    assert not _applied(_map(UNTOUCHED), frozenset({"w2_weight"})).read("w2_weight", 0, 1)[0, 2].any()
    assert (_applied(_map(UNTOUCHED), frozenset({"w13_weight"})).read("w2_weight", 0, 1)[0, 2] == STALE).all()


def test_experts_that_were_not_traced_are_like_the_one_before():
    first = Box(Span(0, 1), Span(0, 3), Span(0, 8), State.SOURCE, Origin("w2", 0, 0, 0))
    second = Box(Span(2, 3), Span(0, 3), Span(0, 8), State.SOURCE, Origin("w2", 3, 1, 0))
    weights = _applied(_map(first, second, traced=(0, 2)))
    for expert, (source, row) in {0: (0, 0), 1: (1, 0), 2: (3, 1), 3: (4, 1)}.items():
        assert weights.read("w2_weight", expert, expert + 1)[0, 0, 0] == _byte(source, row, 0)


@pytest.mark.parametrize("parameter", SHARDS)
@pytest.mark.parametrize("fault", ["", "w2-unit-blind", "half-fix", "floor-division", "ranks-reversed", "stale-tail"])
def test_it_is_what_the_loader_leaves(parameter, fault):
    """The loader loads the checkpoint itself; the map recorded from other bytes, applied to it, gives the same."""
    stack = ReferenceStack(StackOptions(emulate=PADDED))
    loader = FaultyLoader(stack.loader(), FAULTS[fault].loader) if fault else stack.loader()
    checkpoint, shape = seeded(3), TINY.checkpoint_shape(parameter)
    maps = Context(TARGET, stack.planner(), loader).measured_maps("this test")
    for rank in range(3):
        layer = loader.open_experts(ExpertsRequest(TINY, 3, rank, TARGET.backend, TINY.experts, (12, 0)))
        layer.fill(parameter, STALE)
        for shard in SHARDS[parameter]:
            for expert in range(TINY.experts):
                whole = checkpoint.rule(parameter, shard).block(expert, Span(0, shape[0]), Span(0, shape[1]), "cpu")
                layer.load(parameter, shard, expert, whole)
        weights = AppliedWeights({parameter: maps.maps[parameter][rank]}, checkpoint, frozenset())
        for expert in range(TINY.experts):
            assert torch.equal(weights.read(parameter, expert, expert + 1)[0], layer.read(parameter, expert))
        layer.close()


def test_the_reference_map_needs_no_loader():
    due = loaded.due(TARGET)
    stack = ReferenceStack(StackOptions(emulate=PADDED))
    measured = Context(TARGET, stack.planner(), stack.loader()).measured_maps("this test")
    assert {n: [m.boxes for m in maps] for n, maps in due.maps.items()} == {
        n: [m.boxes for m in maps] for n, maps in measured.maps.items()
    }
    assert "no loader was measured" in due.origin
    assert loaded.due(TARGET, tp=1).maps["w2_weight"][0].shape == (4, 256, 128)


def _decoded(rule, rows: Span, cols: Span, expert: int = 0) -> torch.Tensor:
    return mxfp4.decode_codes(rule.block(expert, rows, cols, "cpu")).double()


@pytest.mark.parametrize(("rows", "cols"), [(Span(0, 8), Span(0, 8)), (Span(3, 9), Span(2, 6))])
def test_rules(rows, cols):
    whole = torch.eye(16, dtype=torch.float64)
    cut = (slice(rows.start, rows.stop), slice(2 * cols.start, 2 * cols.stop))
    assert torch.equal(_decoded(Diagonal(), rows, cols), whole[cut])
    column = torch.zeros(16, 16, dtype=torch.float64)
    column[:, 5] = 6.0
    assert torch.equal(_decoded(Column(0x7, 5), rows, cols), column[cut])
    stripes = torch.zeros(16, 16, dtype=torch.float64)
    stripes[1::3] = 1.0
    assert torch.equal(_decoded(Stripes(3), rows, cols, expert=1), stripes[cut])
    assert (Constant(0x9C).block(0, rows, cols, "cpu") == 0x9C).all()


def test_scales_stay_in_their_range():
    found = Seeded(1, 1, 121, 4).block(0, Span(0, 64), Span(0, 64), "cpu")
    assert set(found.flatten().tolist()) == {121, 122, 123, 124}


def test_a_checkpoint_names_its_rules():
    c = Checkpoint(*(Constant(n) for n in range(6)))
    assert [c.rule(p, s).byte for p, s in (("w13_weight", "w3"), ("w13_weight_scale", "w3"), ("w2_weight", "w2"))] == [
        2, 3, 4,
    ]  # fmt: skip
