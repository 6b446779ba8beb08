"""A kernel whose tokens change tiles from call to call: last bits may differ for those that crowd, nothing else may."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
import torch

from conformance import catalogue
from conformance.errors import AdapterError
from conformance.faults.graph_steps import recording
from conformance.gate.runner import evaluate
from conformance.result import Status
from suites.graph.bench import MoeGraphBench
from suites.moe.crowding import crowded
from tests.graph import test_attention_claims
from tests.graph.test_claims import TINY, _context

#: Of the simulated graphs' four tokens at most, two on an expert crowd.
TILE = 1
LAST_BIT, ANOTHER_VALUE = 2.0**-8, 2.0


class _Unsteady:
    """A runner whose graphs differ from eager by a factor: in tokens that crowd, or in the others."""

    def __init__(self, inner, off, others):
        self._inner, self._off, self._others = inner, off, others
        self.sizes, self.words = inner.sizes, inner.words

    def open(self, request):
        layer = self._inner.open(request)
        layer.change(lambda step: lambda buffers: self._run(step, buffers))
        return layer

    def _run(self, step, buffers):
        step(buffers)
        if recording():
            experts = torch.arange(TINY.experts, dtype=torch.int32)
            chosen = buffers.ids[:, :, None] == experts
            crowd = ((chosen.sum((0, 1)) > TILE) & chosen.any(1)).any(1)
            factor = 1 + self._off * (crowd ^ self._others)[:, None]
            buffers.out.copy_(buffers.out.double() * factor)


def _status(monkeypatch, claim, off=LAST_BIT, fault="", others=False, tile=TILE):
    layer = claim.startswith("graph.layer.")
    stack, context = test_attention_claims._context(fault) if layer else _context(fault=fault)
    clean, moe = context.graphs("layer_graph" if layer else "graph"), stack.moe().capabilities()
    context.graphs = lambda name: _Unsteady(clean, off, others)
    declared = msgspec.structs.replace(moe, tile_tokens=tile, pins_tactics=False)
    monkeypatch.setattr(type(stack.moe()), "capabilities", lambda self: declared)
    status, _, evidence = evaluate(catalogue.get(claim), stack, context)
    return status, evidence


REPLAYING = [f"graph.moe.{name}" for name in ("fresh", "inputs", "sizes", "pool", "memory", "routing")]


@pytest.mark.parametrize("claim", REPLAYING)
def test_other_last_bits_of_tokens_that_crowd_pass(claim, monkeypatch):
    status, evidence = _status(monkeypatch, claim)
    assert status is Status.PASS, evidence.summary
    assert "outputs of tokens that crowd are in other bits" in evidence.summary
    assert any("err/bound" in note for note in evidence.notes)


@pytest.mark.parametrize("claim", REPLAYING)
@pytest.mark.parametrize(
    "planted", [{"off": ANOTHER_VALUE}, {"tile": 0}], ids=["outside of the bound", "nothing declared"]
)
def test_other_values_fail(claim, planted, monkeypatch):
    status, evidence = _status(monkeypatch, claim, **planted)
    assert status is Status.FAIL, evidence.summary


@pytest.mark.parametrize("claim", ["graph.moe.fresh", "graph.moe.sizes"])  # with batches in which nobody crowds
def test_last_bits_of_other_tokens_fail(claim, monkeypatch):
    status, evidence = _status(monkeypatch, claim, others=True)
    assert status is Status.FAIL, evidence.summary


@pytest.mark.parametrize("fault", ["graph-frozen-routes", "graph-frozen-tokens"])
def test_a_frozen_input_is_no_last_bit(fault, monkeypatch):
    for claim in ("graph.moe.fresh", "graph.moe.inputs"):
        assert _status(monkeypatch, claim, fault=fault)[0] is Status.FAIL


@pytest.mark.parametrize(
    ("planted", "due"),
    [
        ({}, Status.PASS),
        ({"off": ANOTHER_VALUE}, Status.FAIL),
        ({"tile": 0}, Status.FAIL),
        ({"others": True}, Status.FAIL),
        ({"fault": "graph-layer-frozen-positions"}, Status.FAIL),
    ],
)
def test_a_layer_without_a_reference_is_held_to_the_norm_of_its_rows(planted, due, monkeypatch):
    status, evidence = _status(monkeypatch, "graph.layer.fresh", **planted)
    assert status is due, evidence.summary
    assert planted or any("of a row's norm at most" in note for note in evidence.notes)


def _column(factor):
    """That of the first output alone."""
    return torch.cat([torch.tensor([factor]), torch.ones(4095)])


@pytest.mark.parametrize(
    ("factor", "ok"),
    [
        *((1 + LAST_BIT, True), (1 + 2.0**-6, False), (0.0, False), (torch.nan, False)),
        *((_column(1 + LAST_BIT), True), (_column(1.3), False), (_column(0.0), False), (_column(-1.0), False)),
    ],
)
def test_sums_over_ranks_are_held_to_the_norm_of_their_rows(factor, ok, monkeypatch):
    stack, context = _context()
    declared = msgspec.structs.replace(stack.moe().capabilities(), tile_tokens=TILE)
    monkeypatch.setattr(type(stack.moe()), "capabilities", lambda self: declared)
    bench, want = MoeGraphBench(context), torch.randn(3, 4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    want[:, 0] = 1.0
    inputs = {"ids": torch.tensor([[0], [0], [1]], dtype=torch.int32)}
    got = want.clone()
    got[:2] = (got[:2].double() * factor).bfloat16()
    assert bench.alike(1, "a sum", got, want, inputs, summed=True)
    assert not bench.findings if ok else len(bench.findings) == 2
    assert not bench.alike(1, "a sum", got.roll(1, 0), want, inputs, summed=True)


class _Again:
    """A kernel whose every other call of a batch differs by a factor in tokens that crowd."""

    def __init__(self, layer, off):
        self._layer, self._off, self._calls = layer, off, 0

    def run(self, x, ids, weights, out, tactic=None):
        self._layer.run(x, ids, weights, out, tactic)
        self._calls += 1
        if self._calls % 2 == 0:
            rows = crowded(ids, TILE)
            out[rows] = (out[rows].double() * (1 + self._off)).to(out.dtype)

    def __getattr__(self, name):
        return getattr(self._layer, name)


@pytest.mark.parametrize("claim", ["moe.repeat.bitwise", "graph.jit.shapes", "graph.jit.memory"])
@pytest.mark.parametrize(
    ("off", "tile", "due"),
    [
        (LAST_BIT, TILE, Status.PASS),
        (LAST_BIT, 0, Status.FAIL),
        (1.0, TILE, Status.FAIL),
        (torch.nan, TILE, Status.FAIL),
    ],
)
def test_calls_are_held_to_their_bound_as_replays_are(claim, off, tile, due, monkeypatch):
    stack, context = _context()
    kernel, moe = context.moe, stack.moe().capabilities()
    declared = msgspec.structs.replace(moe, tile_tokens=tile, pins_tactics=False)
    again = SimpleNamespace(capabilities=lambda: declared, open=lambda request: _Again(kernel.open(request), off))
    monkeypatch.setattr(type(context), "moe", property(lambda self: again))
    status, _, evidence = evaluate(catalogue.get(claim), stack, context)
    assert status is due, evidence.summary


def test_many_rows_are_judged_as_they_come(monkeypatch):
    monkeypatch.setattr("suites.moe.crowding._AT_ONCE", 6)
    assert _status(monkeypatch, "graph.moe.fresh")[0] is Status.PASS
    assert _status(monkeypatch, "graph.moe.fresh", off=ANOTHER_VALUE)[0] is Status.FAIL


def test_fewer_than_no_tokens_is_no_tile():
    with pytest.raises(AdapterError, match="tile_tokens=-1: a number of tokens, or 0, was due"):
        crowded(torch.zeros(1, 1, dtype=torch.int32), -1)


def test_who_crowds():
    ids = torch.tensor([[0, 1], [0, 2], [0, -1], [3, 4], [-1, -1]], dtype=torch.int32)
    assert crowded(ids, 2).tolist() == [True, True, True, False, False]
    assert crowded(ids, 3).tolist() == [False] * 5
    assert not crowded(ids, 0).any() and len(crowded(ids[:0], 2)) == 0
