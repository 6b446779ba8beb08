"""Captured attention decode and decoder layer on the reference stack: silent, and faults name what is wrong."""

from __future__ import annotations

import re

import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.faults.catalogue import FAULTS
from conformance.faults.parts import planted_parts
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks import parts
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target
from suites.graph.attention import AttentionGraphBench

TARGET = Target(geometry.load("deepseek-v4-tiny"), 3, "flashinfer_cutlass", None, None, (128,), (128,))
CLAIMS = [c.id for c in catalogue.claims().values() if c.group in ("graph.attention", "graph.layer")]


def _context(fault="", ranks=range(1, 2), heads=(16, 64)) -> tuple[ReferenceStack, Context]:
    options = StackOptions(emulate={"intermediate": 128, "hidden": 128}, arithmetic="bf16", head_paddings=heads)
    stack = ReferenceStack(options)
    offers = parts.of(stack)
    context = Context(TARGET, None, None, planted_parts(offers, FAULTS[fault]) if fault else offers)
    context.ranks = ranks
    return stack, context


@pytest.mark.parametrize("claim", CLAIMS)
def test_silent_on_the_clean_stack(claim):
    status, reason, _ = evaluate(catalogue.get(claim), *_context())
    assert (status, reason) == (Status.PASS, "")


@pytest.mark.parametrize(
    ("fault", "claim", "words"),
    [
        ("graph-attention-frozen-sinks", "inputs", "sinks alone changed: the same, bit for bit"),
        ("graph-attention-frozen-window-lengths", "lengths", "lengths: "),
        ("graph-attention-frozen-entries-slots", "lengths", "in other pages"),
        ("graph-attention-length-read", "capture", "host sync: _local_scalar_dense"),
        ("graph-attention-empty-nan", "lengths", "none at all, token 0, output 0: NaN"),
        ("graph-attention-tile-spread", "sizes", "pad rows length 0, NaN, token 0, output 0: NaN"),
        ("graph-attention-stale-rows", "sizes", "pad rows stale, token 0"),
        ("graph-attention-pool-cache", "pool", "another graph of the pool wrote there"),
        ("graph-attention-sinks-consumed", "canaries", "sinks: changed"),
        ("graph-attention-warm-up-behind", "canaries", "64 written"),
    ],
)
def test_words_of_failures(fault, claim, words):
    status, _, evidence = evaluate(catalogue.get(f"graph.attention.{claim}"), *_context(fault))
    told = [f"{found.where}: {found.got}; {found.meaning}" for found in evidence.findings]
    assert status is Status.FAIL
    assert [one for one in told if re.search(words, one)], told


def test_a_stack_without_attention_graphs():
    stack, context = _context()
    del context._parts["attention_graph"]
    status, reason, _ = evaluate(catalogue.get("graph.attention.fresh"), stack, context)
    assert status is Status.NOT_SUPPORTED and "no `attention_graph()`" in reason


def test_inputs_hold_what_is_claimed():
    """A length of 0, others, slots within the cache; moved pages hold the same tokens."""
    _, context = _context()
    bench = AttentionGraphBench(context)
    given = bench.fresh(4, 2, 1)
    assert int(given["window_lengths"].min()) == 0 < int(given["window_lengths"].max())
    moved = bench.moved(given)
    assert not torch.equal(moved["window"], given["window"])
    held, other = bench.held(4), bench.held(4)
    held.put(given)
    other.put(moved)
    with bench.layer(1) as layer:
        layer.eager(held.buffers)
        layer.eager(other.buffers)
    assert torch.equal(held.buffers.out, other.buffers.out)
    assert not torch.equal(held.buffers.out[0], held.buffers.out[1])


def test_a_rank_of_virtual_groups_has_nothing_to_move_in_the_layer():
    from suites.graph.layer import LayerGraphBench

    _, context = _context()
    bench = LayerGraphBench(context)
    assert [bool(bench.mattering(rank)) for rank in range(3)] == [bool(bench.attention.real(rank)) for rank in range(3)]
