"""What a right kernel may make of one activation: the mirrored value, and how far a flipped code can carry it.

Quantisation is too coarse to be treated as noise: E4M3 keeps four bits, and a lost channel is no larger. But it is a
function of what comes in, so it is mirrored here, and only those codes are given room that accumulation noise (or the
kernel's fast exponential) can push over a rounding boundary: about one in a hundred BF16 codes, fewer E4M3 codes.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch

from references import mxfp8
from references.moe_staged import Scheme, bf16, staged_activation
from references.swiglu import factors

#: Relative error of the activation's exponential and division as kernels compute them (ex2.approx, fast division).
FAST_MATH = 2.0**-20
#: The same of amax / 448: an approximate reciprocal moves amax = 1.75 * 2^n to either side of a scale.
RECIPROCAL = 2.0**-22


class Mirrored(NamedTuple):
    """`value` (M, I) as GEMM2 sees it; a right kernel's lies within `radius` of it, zero for most channels."""

    value: torch.Tensor
    radius: torch.Tensor


def mirrored(
    gate: torch.Tensor,
    up: torch.Tensor,
    gate_noise: torch.Tensor,
    up_noise: torch.Tensor,
    scheme: Scheme,
    limit: float | None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Mirrored:
    """gate, up (M, I) before their BF16 rounding; noise: how far a right kernel's may be from them."""
    value = staged_activation(gate, up, scheme, limit, alpha, beta)
    ends = []
    for side_gate, side_up in product((-1, 1), repeat=2):
        moved = bf16(gate + side_gate * gate_noise), bf16(up + side_up * up_noise)
        silu, factor = factors(*moved, limit, alpha, beta)
        for fast in (1 - FAST_MATH, 1 + FAST_MATH):
            ends.append(bf16((bf16(silu * fast) if scheme == "bf16_steps" else silu * fast) * factor))
    low, high = torch.stack(ends).aminmax(dim=0)
    if scheme == "mxfp8":
        low, high = _requantised(low, high)
    return Mirrored(value, torch.maximum(high - value, value - low))


def _requantised(low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends after MXFP8, with every scale that their block may get."""
    least = torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))
    most = torch.maximum(low.abs(), high.abs())
    codes = []
    for size, side in ((least, 1 - RECIPROCAL), (most, 1 + RECIPROCAL)):
        amax = size.unflatten(-1, (-1, mxfp8.GROUP)).amax(-1)
        scales = mxfp8.scale_above((amax * side / mxfp8.LARGEST).float())
        codes += [mxfp8.dequantize(mxfp8.quantize(end, scales)) for end in (low, high)]
    low, high = torch.stack(codes).aminmax(dim=0)
    return low, high
