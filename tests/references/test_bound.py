"""The bound: its parts by hand, no false alarm over 1,000 seeds, and small faults that exceed it."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.faults import moe as faults
from conformance.provenance.boxes import Span
from conformance.provenance.checkpoint import Checkpoint, seeded
from conformance.stacks.protocols import ParameterInfo
from conformance.stacks.reference_moe import ReferenceMoeLayer
from references.bound import Bounded, bounded, deviations, ulp, unordered
from references.flips import mirrored
from references.moe import Packed
from references.moe_staged import staged_slots
from suites.moe import scales

SCHEMES = ["bf16", "mxfp8", "nvfp4", "bf16_steps"]
#: NVFP4's, as checks of random inputs give them.
SCALES = scales.random(10.0)


class Weights:
    """LoadedWeights of a whole checkpoint: no rank, no padding."""

    def __init__(self, checkpoint: Checkpoint, hidden: int, channels: int):
        self.checkpoint, self.hidden, self.channels = checkpoint, hidden, channels
        self._made: dict[tuple[str, int], torch.Tensor] = {}

    def info(self, parameter: str) -> ParameterInfo:
        unit = 32 if parameter.endswith("_scale") else 2
        rows, of = (2 * self.channels, self.hidden) if parameter.startswith("w13") else (self.hidden, self.channels)
        return ParameterInfo(rows, of // unit, "uint8")

    def read(self, parameter: str, first: int, last: int, device: str = "cpu") -> torch.Tensor:
        return torch.stack([self._one(parameter, expert) for expert in range(first, last)])

    def _one(self, parameter: str, expert: int) -> torch.Tensor:
        if (parameter, expert) not in self._made:
            shards = ("w1", "w3") if parameter.startswith("w13") else ("w2",)
            info = self.info(parameter)
            rows, cols = Span(0, info.rows // len(shards)), Span(0, info.cols)
            made = [self.checkpoint.rule(parameter, s).block(expert, rows, cols, "cpu") for s in shards]
            self._made[parameter, expert] = torch.cat(made)
        return self._made[parameter, expert]

    def packed(self, expert: int, start: int, stop: int) -> Packed:
        w13, w13_scale = (self._one(name, expert) for name in ("w13_weight", "w13_weight_scale"))
        w2, w2_scale = (self._one(name, expert) for name in ("w2_weight", "w2_weight_scale"))
        up = self.channels
        return Packed(
            *(t[start:stop] for t in (w13, w13_scale)),
            *(t[up + start : up + stop] for t in (w13, w13_scale)),
            w2[:, start // 2 : stop // 2],
            w2_scale[:, start // 32 : stop // 32],
        )


class Request:
    """What the emulated kernel reads of a MoeRequest."""

    def __init__(self, weights, experts: int, limit: float):
        self.weights, self.experts, self.limit, self.alpha, self.beta = weights, experts, limit, 1.0, 0.0
        self.global_scales = SCALES


def _case(seed: int, scheme: str, hidden: int, channels: int, experts: int, tokens: int, family: int):
    """(kernel's run of spoilt weights and routing, reference with bound, lambda)."""
    rng = torch.Generator().manual_seed(seed)
    weights = Weights(seeded(seed), hidden, channels)
    x = (torch.randn(tokens, hidden, generator=rng) * 32 / hidden**0.5).bfloat16()
    ids = torch.arange(experts, dtype=torch.int32).repeat(tokens, 1)
    share = torch.softmax(torch.randn(tokens, experts, generator=rng), -1) * 1.5
    allowed = deviations(family, 1e-3)
    right = bounded(x, ids, share, weights.packed, channels, scheme, 10.0, allowed, scales=SCALES)

    def run(spoil=None, factor=None) -> torch.Tensor:
        given = spoil(weights) if spoil else weights
        out = torch.full(x.shape, math.nan, dtype=torch.bfloat16)
        layer = ReferenceMoeLayer(Request(given, experts, 10.0), scheme, "cpu")
        layer.run(x, ids, share if factor is None else share * factor, out)
        return out

    return run, right, allowed


def _ratio(got: torch.Tensor, right: Bounded, allowed: float) -> float:
    return float(((got.double() - right.value).abs() / right.bound(allowed)).max())


@pytest.mark.parametrize(("family", "alarm", "due"), [(64 * 4096, 1e-6, 7.35), (1, 0.05, 2.716)])
def test_lambda(family, alarm, due):
    """sqrt(2 ln(2 N / alarm))"""
    assert deviations(family, alarm) == pytest.approx(due, abs=0.01)


@pytest.mark.parametrize(("value", "due"), [(1.0, 2.0**-7), (1.99, 2.0**-7), (2.0, 2.0**-6), (-0.75, 2.0**-8), (0, 0)])
def test_ulp_of_bf16(value, due):
    assert ulp(torch.tensor([value], dtype=torch.float64)).item() == due


def test_rounding_is_uniform_and_its_variance_is_ulp_squared_over_12():
    x = torch.rand(100_000, generator=torch.Generator().manual_seed(0)).double() + 1
    error = (x.float().bfloat16().double() - x) / ulp(x)
    assert float(error.abs().max()) <= 0.5
    assert float(error.var()) == pytest.approx(1 / 12, rel=0.02)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_false_alarm_over_1000_seeds(scheme):
    """A right kernel, emulated in FP32: under the bound every time, and not far under: the bound is no excuse.

    Six slots now and then: that many Marlin adds otherwise than two."""
    seeds, hidden, channels, tokens = 1000, 64, 64, 2
    family = seeds * tokens * hidden
    ratios = []
    for seed in range(seeds):
        experts = 6 if seed % 20 == 1 else 1 + (seed % 4 == 0)
        run, right, allowed = _case(seed, scheme, hidden, channels, experts, tokens, family)
        ratios.append(_ratio(run(), right, allowed))
    assert max(ratios) <= 1
    assert max(ratios) > 0.4


@pytest.mark.parametrize(("scheme", "experts"), [*((scheme, 4) for scheme in SCHEMES), ("bf16_steps", 6)])
@pytest.mark.parametrize(("fault", "least"), [("lost_scale_group", 5.0), ("lost_channel", 1.2), ("scaled", 1.2)])
def test_small_faults_exceed_it(scheme, experts, fault, least):
    """One expert of four or six, in a rank of DeepSeek-V4-Flash's 704 channels."""
    run, right, allowed = _case(5, scheme, 512, 704, experts, 16, 64 * 4096 * 3)
    assert _ratio(run(), right, allowed) <= 1
    if fault == "scaled":
        spoilt = run(factor=torch.tensor([1.0, 1.02, *[1.0] * (experts - 2)]))
    else:
        spoilt = run(spoil=lambda weights: getattr(faults, fault).spoil(weights, 0))
    if scheme == "bf16_steps" and fault == "scaled":
        least = 1.0  # every slot's product is rounded once more, and so is every sum of slots: 1.05 is what is left
    assert _ratio(spoilt, right, allowed) > least


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_ceiling_is_never_under_the_error(scheme):
    run, right, _ = _case(7, scheme, 256, 256, 2, 8, 1)
    assert bool(((run().double() - right.value).abs() <= right.ceiling).all())


def test_only_codes_near_a_boundary_have_room():
    rng = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(64, 256, generator=rng, dtype=torch.float64) * 5 for _ in range(2))
    # NVFP4's codes are far apart: of 16,384, none is within the first two's noise of a boundary.
    for scheme, size, most in (("bf16", 1e-6, 0.02), ("mxfp8", 1e-6, 0.02), ("nvfp4", 1e-3, 0.02)):
        noise = torch.full_like(gate, size)
        found = mirrored(gate, up, noise, noise, scheme, 10.0, scales=SCALES)
        assert 0 < float((found.radius > 0).double().mean()) < most
        assert bool((found.radius >= 0).all())


def test_room_covers_what_noise_does():
    """Activations of gates and ups moved by up to the noise stay within the radius."""
    rng = torch.Generator().manual_seed(1)
    gate, up = (torch.randn(64, 256, generator=rng, dtype=torch.float64) * 5 for _ in range(2))
    noise = torch.full_like(gate, 1e-3)
    for scheme in SCHEMES:
        right = mirrored(gate, up, noise, noise, scheme, 10.0, scales=SCALES)
        moved = gate + noise * (2 * torch.rand(gate.shape, generator=rng) - 1)
        found = mirrored(moved, up, noise * 0, noise * 0, scheme, 10.0, scales=SCALES)
        assert bool(((found.value - right.value).abs() <= right.radius + 1e-12).all())
        assert float((found.value - right.value).abs().max()) > 0


@pytest.mark.parametrize("scheme", ["bf16", "mxfp8"])
def test_bf16_additions_in_any_order_are_within_their_own_bound(scheme):
    """Six slots: an FP32 sum's bound is exceeded by them at times, the unordered one's never."""
    hidden, channels, experts, tokens = 256, 256, 6, 16
    over = []
    for seed in range(6):
        rng = torch.Generator().manual_seed(seed)
        weights = Weights(seeded(seed), hidden, channels)
        x = (torch.randn(tokens, hidden, generator=rng) * 32 / hidden**0.5).bfloat16()
        ids = torch.arange(experts, dtype=torch.int32).repeat(tokens, 1)
        share = torch.softmax(torch.randn(tokens, experts, generator=rng), -1) * 1.5
        allowed = deviations(6 * tokens * hidden, 1e-3)
        slots = staged_slots(x, ids, weights.packed, channels, scheme, 10.0)
        in_order = bounded(x, ids, share, weights.packed, channels, scheme, 10.0, allowed)
        right = unordered(in_order, slots, share)
        total = torch.zeros(tokens, hidden).bfloat16()
        for slot in torch.randperm(experts, generator=rng).tolist():
            total += (slots[:, slot] * share[:, slot, None].double()).float().bfloat16()
        assert _ratio(total, right, allowed) <= 1
        over.append(_ratio(total, in_order, allowed))
    assert max(over) > 0.8
