"""The reference stack's kernel: another way to the same numbers as `references/`, and never a copy of it."""

from __future__ import annotations

import ast
import inspect

import msgspec
import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context, Target
from conformance.errors import StackRefused
from conformance.faults import moe as faults
from conformance.faults.kernel import FaultyMoe
from conformance.provenance import loaded
from conformance.provenance.checkpoint import Checkpoint, Constant, seeded
from conformance.stacks import reference_moe, reference_numerics, reference_prepare, reference_selection
from conformance.stacks.protocols import MoeRequest
from conformance.stacks.reference_moe import ReferenceMoe
from references import mxfp4, mxfp8
from references.moe_staged import bf16, moe_staged
from suites.moe import due
from suites.moe.bench import Bench

TINY = geometry.load("deepseek-v4-tiny")
TARGET = Target(TINY, 3, "flashinfer_cutlass", None, None, (128,), (128,))


@pytest.mark.parametrize("module", [reference_moe, reference_numerics, reference_prepare, reference_selection])
def test_it_shares_nothing_with_the_references(module):
    tree = ast.parse(inspect.getsource(module))
    names = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names += [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
    assert not [name for name in names if name.startswith("references")]


def test_decoders_agree_on_every_byte_and_scale():
    packed = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 16)
    found, right = reference_numerics.weights(packed, scales), mxfp4.dequantize(packed, scales).float()
    torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("seed", range(3))
def test_quantisers_agree_over_all_magnitudes(seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(400, 256, generator=rng) * torch.exp2(torch.randint(-140, 120, (400, 256), generator=rng).float())
    x[0], x[1, 0], x[2, 5] = 0.0, torch.nan, 1.75
    torch.testing.assert_close(reference_numerics.to_mxfp8(x), mxfp8.rounded(x), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(reference_numerics.to_bf16(x), bf16(x), rtol=0, atol=0, equal_nan=True)


def _layer(scheme: str, checkpoint: Checkpoint, limit: float | None = 10.0, rank: int = 1):
    weights = loaded.due(TARGET).weights(rank, checkpoint)
    return ReferenceMoe(scheme).open(MoeRequest(TINY, 3, rank, TARGET.backend, None, 4, limit, weights))


def _tokens(m: int = 150):
    """More than one chunk; some slots hold no expert."""
    rng = torch.Generator().manual_seed(m)
    ids = torch.stack([torch.randperm(4, generator=rng)[:3] for _ in range(m)]).int()
    ids[::5, 1] = -1
    return torch.randn(m, TINY.hidden_size, generator=rng).bfloat16() * 2, ids, torch.rand(m, 3, generator=rng)


@pytest.mark.parametrize("scheme", ["bf16", "mxfp8"])
def test_it_computes_what_the_staged_reference_does(scheme):
    """But for codes that the order of FP32 sums flips: a few in ten thousand outputs."""
    x, ids, weights = _tokens()
    context = Context(TARGET, None, None, lambda: ReferenceMoe(scheme))
    own, checkpoint = Bench(context).own(1), seeded(11)
    out = torch.full(x.shape, torch.nan, dtype=torch.bfloat16)
    _layer(scheme, checkpoint).run(x, ids, weights, out)
    right = moe_staged(x, ids, weights, due.experts(checkpoint, TINY, own, "cpu"), len(own), scheme, 10.0)
    assert float((out.double() != right).double().mean()) < 0.1
    assert float((out.double() - right).norm() / right.norm()) < 1e-3


def test_every_output_is_written_and_no_slot_adds_nothing():
    x, ids, weights = _tokens(7)
    out = torch.full(x.shape, torch.nan, dtype=torch.bfloat16)
    _layer("bf16", seeded(1)).run(x, torch.full_like(ids, -1), weights, out)
    assert not out.any()


def test_a_nan_scale_shows_over_zero_inputs():
    """0 x NaN is NaN: what the kernel leaves out of a product must not hide that."""
    c = seeded(1)
    x, ids, weights = torch.zeros(1, TINY.hidden_size).bfloat16(), torch.zeros(1, 1).int(), torch.ones(1, 1)
    for spoilt in (
        Checkpoint(c.w1, Constant(255), c.w3, c.w3_scale, c.w2, c.w2_scale),
        Checkpoint(c.w1, c.w1_scale, c.w3, c.w3_scale, Constant(0), Constant(255)),
    ):
        out = torch.zeros_like(x)
        _layer("bf16", spoilt).run(x, ids, weights, out)
        assert out.isnan().all()


def test_no_tokens():
    out = torch.zeros(0, TINY.hidden_size).bfloat16()
    _layer("mxfp8", seeded(1)).run(out, torch.zeros(0, 2).int(), torch.zeros(0, 2), out)


def test_wrong_calls_are_refused():
    x, ids, weights = _tokens(2)
    layer = _layer("bf16", seeded(1))
    with pytest.raises(StackRefused, match="expert 4 was asked for; there are 4"):
        layer.run(x, torch.full_like(ids, 4), weights, x.clone())
    with pytest.raises(StackRefused, match="tactic 4 was asked for; there are 4"):
        layer.run(x, ids, weights, x.clone(), tactic=4)


class _AtomicSums(FaultyMoe):
    """Slots added up in BF16, as FlashInfer's fused finalize does, and declared so."""

    def capabilities(self):
        return msgspec.structs.replace(super().capabilities(), slot_sum="bfloat16")


@pytest.mark.parametrize("scheme", ["bf16", "mxfp8"])
def test_a_kernel_that_declares_bf16_sums_is_judged_by_them(scheme):
    context = Context(TARGET, None, None, lambda: _AtomicSums(ReferenceMoe(scheme), faults.bf16_sum))
    for claim in ("moe.bound.random", "moe.tp3.reference", "moe.exact.sum"):
        evidence = catalogue.get(claim).function()(None, context)
        assert evidence.ok, (claim, evidence.summary)
