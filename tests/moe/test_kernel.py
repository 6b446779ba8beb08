"""The reference stack's kernel: another way to the same numbers as `references/`, and never a copy of it."""

from __future__ import annotations

import ast
import inspect

import msgspec
import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.errors import StackRefused
from conformance.faults import moe as faults
from conformance.faults import moe_nvfp4 as nvfp4_faults
from conformance.faults.kernel import FaultyMoe
from conformance.provenance import loaded
from conformance.provenance.checkpoint import Checkpoint, Constant, seeded
from conformance.stacks import reference_moe, reference_numerics, reference_prepare, reference_selection
from conformance.stacks.protocols import MoeRequest
from conformance.stacks.reference_moe import ReferenceMoe
from conformance.target import Target
from references import moe_nvfp4, mxfp4, mxfp8, nvfp4
from references.finalize import bf16
from references.moe import decoded
from references.moe_staged import moe_staged
from suites.moe import due, scales
from suites.moe.bench import Bench

TINY = geometry.load("deepseek-v4-tiny")
TARGET = Target(TINY, 3, "flashinfer_cutlass", None, None, (128,), (128,))
SCALES = scales.random(10.0)
#: Claims of the layer that run a kernel; `moe.tactics.right` takes long.
NVFP4 = {
    *(f"moe.exact.{name}" for name in ("w2", "w2_scale", "w1", "w3", "w13_scale", "dense", "sum")),
    *("moe.routing.experts", "moe.swiglu.clamp", "moe.nan.visible", "moe.repeat.bitwise", "moe.bound.random"),
    "moe.tp3.reference",
}


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
    request = MoeRequest(TINY, 3, rank, TARGET.backend, None, 4, limit, weights, global_scales=SCALES)
    return ReferenceMoe(scheme).open(request)


def _tokens(m: int = 150):
    """More than one chunk; some slots hold no expert."""
    rng = torch.Generator().manual_seed(m)
    ids = torch.stack([torch.randperm(4, generator=rng)[:3] for _ in range(m)]).int()
    ids[::5, 1] = -1
    return torch.randn(m, TINY.hidden_size, generator=rng).bfloat16() * 2, ids, torch.rand(m, 3, generator=rng)


def test_nvfp4_quantisers_agree():
    """Blocks of all sizes, values between and on codes; a right quantiser of the faults' own is a third."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(300, 256, generator=rng) * torch.exp2(torch.randint(-12, 12, (300, 1), generator=rng).float())
    x = x.bfloat16().float()
    x[0] = 0.0
    right = nvfp4.rounded(x, SCALES.input)
    found = reference_numerics.to_nvfp4(x, SCALES.input).double() * SCALES.input
    torch.testing.assert_close(found, right, rtol=0, atol=0)
    torch.testing.assert_close(nvfp4_faults.quantised(x, SCALES.input).double() * SCALES.input, right, rtol=0, atol=0)
    spoilt = x.clone()
    spoilt[1, 20], spoilt[2, 40] = torch.nan, torch.inf
    odd = ~reference_numerics.to_nvfp4(spoilt, SCALES.input).isfinite()
    assert odd.nonzero().tolist() == [[1, n] for n in range(16, 32)] + [[2, n] for n in range(32, 48)]


def test_two_ways_of_writing_nvfp4_staging_agree():
    """Blocks of channels against whole experts."""
    x, ids, weights = _tokens(20)
    own, checkpoint = Bench(Context(TARGET, None, None, {"moe": lambda: ReferenceMoe("nvfp4")})).own(1), seeded(11)
    of = due.experts(checkpoint, TINY, own, "cpu")
    blocks = moe_staged(x, ids, weights, of, len(own), "nvfp4", 10.0, block=32, scales=SCALES)
    whole = [moe_nvfp4.Expert(*decoded(of(expert, 0, len(own)), torch.float64)) for expert in range(4)]
    torch.testing.assert_close(blocks, moe_nvfp4.moe(x.double(), ids, weights, whole, *SCALES, 10.0), rtol=0, atol=0)


@pytest.mark.parametrize("claim", sorted(NVFP4))
def test_nvfp4_passes_what_others_pass(claim):
    context = Context(TARGET, None, None, {"moe": lambda: ReferenceMoe("nvfp4")})
    evidence = catalogue.get(claim).function()(None, context)
    assert evidence.ok, evidence.summary


@pytest.mark.parametrize("scheme", ["bf16", "mxfp8", "nvfp4"])
def test_it_computes_what_the_staged_reference_does(scheme):
    """But for codes that the order of FP32 sums flips: a few in ten thousand outputs."""
    x, ids, weights = _tokens()
    context = Context(TARGET, None, None, {"moe": lambda: ReferenceMoe(scheme)})
    own, checkpoint = Bench(context).own(1), seeded(11)
    out = torch.full(x.shape, torch.nan, dtype=torch.bfloat16)
    _layer(scheme, checkpoint).run(x, ids, weights, out)
    experts = due.experts(checkpoint, TINY, own, "cpu")
    right = moe_staged(x, ids, weights, experts, len(own), scheme, 10.0, scales=SCALES)
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
    context = Context(TARGET, None, None, {"moe": lambda: _AtomicSums(ReferenceMoe(scheme), faults.bf16_sum)})
    for claim in ("moe.bound.random", "moe.tp3.reference", "moe.exact.sum"):
        evidence = catalogue.get(claim).function()(None, context)
        assert evidence.ok, (claim, evidence.summary)
