"""How far a right kernel's result may be from the reference: derived, element by element, from its own roundings.

Every rounding to nearest leaves an error uniform in +-ulp/2, so of variance ulp^2 / 12. The variances are propagated
to the output (sigma^2). A sum of independent uniform errors is sub-Gaussian with just that variance:
P(|err| > lambda sigma) <= 2 exp(-lambda^2 / 2). Over N elements and a stated probability of one false alarm in the
whole family that makes

    lambda = sqrt(2 ln(2 N / alarm))            7.3 for N = 64 x 4096 and alarm = 1e-6

No result may exceed the worst case either (every rounding at its largest, all in one direction): the ceiling.
BF16's unit roundoff is 2^-8 (7 stored mantissa bits and round to nearest: ulp/2 = 2^-8 of the power of two below).
Source: Higham and Mary, 10.1137/18M1226312 (probabilistic rounding analysis); Hoeffding's lemma for the uniform case.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from references.finalize import FEW
from references.flips import mirrored, nvfp4_ends
from references.moe import Experts, blocks, decoded, routed
from references.moe_staged import PLAIN, Scheme, staged_input
from references.mxfp4 import Scratch
from references.nvfp4 import GlobalScales
from references.swiglu import factors, slopes, swiglu

#: Unit roundoff of FP32 accumulation; hardware accumulators truncate, which lambda times this covers.
FP32 = 2.0**-24
BF16_BITS = 7  # stored mantissa bits


class Bounded(NamedTuple):
    """All (M, H) FP64. `value`: the reference. `variance`: of random roundings. `allowance`: room for flipped codes.
    `ceiling`: the worst case."""

    value: torch.Tensor
    variance: torch.Tensor
    allowance: torch.Tensor
    ceiling: torch.Tensor

    def bound(self, deviations: float) -> torch.Tensor:
        return torch.minimum(deviations * self.variance.sqrt() + self.allowance, self.ceiling)

    def __add__(self, other: Bounded) -> Bounded:  # type: ignore[override]
        """Independent parts, such as ranks, summed."""
        return Bounded(*(a + b for a, b in zip(self, other, strict=True)))


def all_reduced(parts: list[Bounded]) -> Bounded:
    """The ranks' results summed in BF16: each addition but the first operand's own rounds once more, and no partial
    sum is larger than all parts' absolute values together."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    largest = torch.stack([part.value.abs() + part.ceiling for part in parts]).sum(0)
    times = len(parts) - 1
    return total._replace(
        variance=total.variance + times * _rounding(largest), ceiling=total.ceiling + times * ulp(largest) / 2
    )


def deviations(family: int, alarm: float) -> float:
    """lambda for `family` elements and a probability `alarm` that any of them exceeds the bound by chance."""
    return math.sqrt(2 * math.log(2 * family / alarm))


def ulp(value: torch.Tensor, bits: int = BF16_BITS) -> torch.Tensor:
    """Spacing of numbers with `bits` stored mantissa bits at |value|; zero at zero."""
    _, exponent = torch.frexp(value)
    return torch.where(value == 0, 0.0, torch.exp2((exponent - 1 - bits).to(value.dtype)))


def _rounding(value: torch.Tensor) -> torch.Tensor:
    """Variance of rounding to BF16."""
    return ulp(value).square() / 12


def bounded(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    experts: Experts,
    channels: int,
    scheme: Scheme,
    limit: float | None,
    noise: float,
    alpha: float = 1.0,
    beta: float = 0.0,
    block: int = 0,
    scales: GlobalScales = PLAIN,
) -> Bounded:
    """One rank's result before all-reduce, rounded to BF16 at the end, as `scheme` stages it.

    x (M, H), ids and weights (M, k). `noise`: the deviations that accumulation may show before a code counts as safe
    (use `deviations`). `bf16` and `bf16_steps`: the value is FP64 exact and every rounding is noise (slots are added as
    `finalize.stepped` tells); `mxfp8` and `nvfp4`: activations are mirrored.
    `block`: channels decoded at a time, whole groups of 32 (0: 512 on a CPU, all of them elsewhere).
    """
    block, scratch = block or (512 if x.device.type == "cpu" else channels), Scratch()
    parts = [torch.zeros(x.shape, dtype=torch.float64, device=x.device) for _ in range(4)]
    stepwise = ids.shape[1] if scheme == "bf16_steps" and ids.shape[1] <= FEW else 0
    of_slots = torch.zeros((stepwise, *x.shape), dtype=torch.float64, device=x.device)
    for expert, tokens, slots in routed(ids):
        inputs = staged_input(x[tokens].double(), scheme, scales)
        doubt = _doubt(x[tokens].double(), inputs, scheme, scales)
        z = [torch.zeros_like(inputs) for _ in range(4)]
        for start, stop in blocks(channels, block):
            w = decoded(experts(expert, start, stop), torch.float64, scratch)
            gate, gate_size = _product(inputs, w.w1)
            up, up_size = _product(inputs, w.w3)
            if scheme in ("mxfp8", "nvfp4"):
                reach = noise * FP32 * math.sqrt(inputs.shape[-1])
                of_gate, of_up = reach * gate_size, reach * up_size
                if doubt is not None:
                    of_gate, of_up = of_gate + doubt @ w.w1.abs().T, of_up + doubt @ w.w3.abs().T
                h, radius = mirrored(gate, up, of_gate, of_up, scheme, limit, alpha, beta, scales)
                variance, worst = torch.zeros_like(h), radius
            else:
                h, variance, worst = _noisy(gate, up, gate_size, up_size, inputs.shape[-1], limit, alpha, beta)
                if scheme == "bf16_steps":
                    silu, factor = factors(gate, up, limit, alpha, beta)
                    variance = variance + factor.square() * _rounding(silu)
                    worst = worst + factor.abs() * ulp(silu) / 2
                radius = torch.zeros_like(h)
            value, size = _product(h, w.w2)
            z[0] += value
            z[1] += variance @ w.w2.square().T + size.square() * (FP32**2 * channels)
            z[2] += radius @ w.w2.abs().T
            z[3] += worst @ w.w2.abs().T + size * (FP32 * channels**1.5)
        z[1] += _rounding(z[0])
        z[3] += ulp(z[0]) / 2
        weight = weights[tokens, slots, None].double()
        for part, of_expert, factor in zip(
            parts, z, (weight, weight.square(), weight.abs(), weight.abs()), strict=True
        ):
            part.index_add_(0, tokens, of_expert * factor)
        if scheme == "bf16_steps":
            for part, more in zip((parts[1], parts[3]), _weighted(z[0], z[3], weight), strict=True):
                part.index_add_(0, tokens, more)
            if stepwise:
                of_slots[slots, tokens] = z[0] * weight
    if stepwise:
        sums = of_slots.cumsum(0)[1:-1].abs() + 4 * parts[1].sqrt()  # the last sum is rounded below
        parts[1] += _rounding(sums).sum(0)
        parts[3] += ulp(sums + parts[3]).sum(0) / 2
    value, variance, allowance, ceiling = parts
    largest = (
        value.abs() + ceiling
    )  # the kernel's own result may lie in the next binade, where the ulp is twice as large
    return Bounded(value, variance + _rounding(largest), allowance, ceiling + ulp(largest) / 2)


def _doubt(x: torch.Tensor, inputs: torch.Tensor, scheme: Scheme, scales: GlobalScales) -> torch.Tensor | None:
    """(M, H): how far codes of x that lie on a rounding boundary of NVFP4 may be from the mirrored ones; None: none
    does. MXFP8's are exact: quotients by a power of two."""
    if scheme != "nvfp4":
        return None
    low, high = nvfp4_ends(x, x, scales.input)
    radius = torch.maximum(high - inputs, inputs - low)
    return radius if bool(radius.any()) else None


def _weighted(z: torch.Tensor, worst: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(variance, worst error) that a slot gains where its weight, and its product with the weight, are BF16."""
    product = (z.abs() + worst) * weight.abs()
    variance = z.square() * _rounding(weight) + _rounding(product)
    return variance, (z.abs() + worst) * ulp(weight) / 2 + ulp(product) / 2


def _product(a: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(a w^T, root of the sum of squared terms): the second is what accumulation errors scale with."""
    return a @ w.T, (a.square() @ w.square().T).sqrt()


def _noisy(
    gate: torch.Tensor,
    up: torch.Tensor,
    gate_size: torch.Tensor,
    up_size: torch.Tensor,
    terms: int,
    limit: float | None,
    alpha: float,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(activation, its variance, its worst error): gate, up and the activation itself are each stored as BF16."""
    h = swiglu(gate, up, limit, alpha, beta)
    by_gate, by_up = slopes(gate, up, limit, alpha, beta)
    variance, worst = _rounding(h), ulp(h) / 2
    for value, size, slope in ((gate, gate_size, by_gate), (up, up_size, by_up)):
        variance = variance + slope.square() * (_rounding(value) + size.square() * (FP32**2 * terms))
        worst = worst + slope.abs() * (ulp(value) / 2 + size * (FP32 * terms**1.5))
    return h, variance, worst


def unordered(right: Bounded, slots: torch.Tensor, weights: torch.Tensor) -> Bounded:
    """The same for slots that BF16 atomics add up in any order (`references/finalize.py`, fused), not FP32 in order.

    slots (M, k, H): each slot's GEMM2 result (`moe_staged.staged_slots`). Each addition but the first rounds a partial
    sum that is no larger than all terms together; what BF16 rounds a term to takes the place of the last rounding.
    """
    largest = (weights[:, :, None].double() * slots).abs().sum(1) + right.ceiling
    times = slots.shape[1] - 1
    return right._replace(
        variance=right.variance + times * _rounding(largest), ceiling=right.ceiling + times * ulp(largest) / 2
    )
