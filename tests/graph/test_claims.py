"""The graph claims on the reference stack: silent in each arithmetic, and each fault's words name what is wrong."""

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
from conformance.stacks.reference_graphs import ReferenceGraphs
from conformance.target import Target
from suites.graph.bench import MoeGraphBench
from suites.moe.random_batch import checkpoint

TINY = geometry.load("deepseek-v4-tiny")
TARGET = Target(TINY, 3, "flashinfer_cutlass", None, None, (128,), (128,))
CLAIMS = [claim.id for claim in catalogue.claims().values() if claim.group == "graph.moe"]


def _context(arithmetic="bf16", fault="", ranks=range(1, 2)) -> tuple[ReferenceStack, Context]:
    stack = ReferenceStack(StackOptions(emulate={"intermediate": 128, "hidden": 128}, arithmetic=arithmetic))
    offers = parts.of(stack)
    context = Context(TARGET, None, None, planted_parts(offers, FAULTS[fault]) if fault else offers)
    context.ranks = ranks
    return stack, context


@pytest.mark.parametrize("arithmetic", ["bf16", "mxfp8", "bf16_steps"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_silent_on_the_clean_stack(claim, arithmetic):
    status, reason, _ = evaluate(catalogue.get(claim), *_context(arithmetic))
    assert (status, reason) == (Status.PASS, "")


@pytest.mark.parametrize(
    ("fault", "claim", "words"),
    [
        ("graph-frozen-routes", "inputs", "ids alone changed: the same, bit for bit"),
        ("graph-stale-output", "steady", "NaN: never written"),
        ("graph-number-read", "capture", "host sync: _local_scalar_dense"),
        ("graph-list-made", "capture", "copy from host memory"),
        ("graph-pad-rows-leak", "sizes", r"3 tokens in a graph of 4, pad rows NaN, token 0, output 0: NaN"),
        ("graph-pool-input", "pool", "another graph of the pool wrote there"),
        ("graph-takes-memory", "memory", "2560 bytes"),
        ("graph-warm-up-behind", "canaries", "64 written"),
        ("graph-output-over-input", "canaries", "x: changed"),
    ],
)
def test_words_of_failures(fault, claim, words):
    status, _, evidence = evaluate(catalogue.get(f"graph.moe.{claim}"), *_context(fault=fault))
    told = [f"{found.where}: {found.got}; {found.meaning}" for found in evidence.findings]
    assert status is Status.FAIL
    assert [one for one in told if re.search(words, one)], told


def test_every_claim_is_named_by_a_fault():
    named = {claim for fault in FAULTS.values() for claim in fault.claims}
    assert named >= {claim.id for claim in catalogue.claims().values() if claim.layer == "graph"}


def test_a_stack_without_graphs():
    stack, context = _context()
    del context._parts["graph"]
    status, reason, _ = evaluate(catalogue.get("graph.moe.fresh"), stack, context)
    assert status is Status.NOT_SUPPORTED and "captures no graphs" in reason


@pytest.mark.parametrize("arithmetic", ["bf16", "mxfp8", "bf16_steps"])
def test_its_eager_call_is_the_moe_kernels(arithmetic):
    """Another order of work, the same numbers: but for codes that the order of FP32 sums flips."""
    _, context = _context(arithmetic)
    bench = MoeGraphBench(context)
    given = bench.fresh(8, 3)
    with bench.layer(1) as layer, bench.bench.layer(1, checkpoint(context), TINY.swiglu_limit) as kernel:
        got, want = bench.eager(layer, given), bench.bench.run(kernel, *given.values())
    assert ((got != want).float().mean()) < 0.05
    torch.testing.assert_close(got.float(), want.float(), rtol=0.02, atol=0.02 * float(want.abs().max()))


def test_canaries_see_a_single_byte():
    _, context = _context()
    bench = MoeGraphBench(context)
    held = bench.held(3)
    held.put(bench.fresh(3, 0))
    assert held.spoilt() == 0
    held.gaps[3][-1] ^= 1
    assert held.spoilt() == 1


def test_simulated_sizes_have_sizes_between_them():
    assert any(b - a > 1 for a, b in zip(ReferenceGraphs.sizes, ReferenceGraphs.sizes[1:], strict=False))
