"""What a right kernel may make of one activation: the mirrored value, and how far a flipped code can carry it.

Quantisation is too coarse to be treated as noise: E4M3 keeps four bits, and a lost channel is no larger. But it is a
function of what comes in, so it is mirrored here, and only those codes are given room that accumulation noise (or the
kernel's fast exponential) can push over a rounding boundary: about one in a hundred BF16 codes, fewer E4M3 codes.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch

from references import mxfp8, nvfp4
from references.moe_staged import PLAIN, Scheme, bf16, staged_activation
from references.nvfp4 import GlobalScales
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
    scales: GlobalScales = PLAIN,
) -> Mirrored:
    """gate, up (M, I) before their BF16 rounding; noise: how far a right kernel's may be from them."""
    value = staged_activation(gate, up, scheme, limit, alpha, beta, scales)
    ends = []
    for side_gate, side_up in product((-1, 1), repeat=2):
        moved = bf16(gate + side_gate * gate_noise), bf16(up + side_up * up_noise)
        silu, factor = factors(*moved, limit, alpha, beta)
        for fast in (1 - FAST_MATH, 1 + FAST_MATH):
            ends.append(bf16((bf16(silu * fast) if scheme == "bf16_steps" else silu * fast) * factor))
    low, high = torch.stack(ends).aminmax(dim=0)
    if scheme == "mxfp8":
        low, high = _requantised(low, high)
    if scheme == "nvfp4":
        low, high = nvfp4_ends(low, high, scales.activation)
    return Mirrored(value, torch.maximum(high - value, value - low))


def _requantised(low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends after MXFP8, with every scale that their block may get."""
    codes = []
    for size, side in zip(_sizes(low, high), (1 - RECIPROCAL, 1 + RECIPROCAL), strict=True):
        amax = size.unflatten(-1, (-1, mxfp8.GROUP)).amax(-1)
        scales = mxfp8.scale_above((amax * side / mxfp8.LARGEST).float())
        codes += [mxfp8.dequantize(mxfp8.quantize(end, scales)) for end in (low, high)]
    low, high = torch.stack(codes).aminmax(dim=0)
    return low, high


def nvfp4_ends(low: torch.Tensor, high: torch.Tensor, global_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends (M, K) after NVFP4, with both scales that their block may get, and what FP32 may make of a quotient."""
    codes = []
    for size, side in zip(_sizes(low, high), (1 - nvfp4.EPSILON, 1 + nvfp4.EPSILON), strict=True):
        scales = nvfp4.scale_bytes(nvfp4.scale_quotients(size, global_scale) * side)
        for end, factor in product((low, high), (1 - nvfp4.EPSILON, 1 + nvfp4.EPSILON)):
            elements = nvfp4.element_codes(end, scales, global_scale, factor=factor)
            codes.append(nvfp4.dequantize(nvfp4.Nvfp4(elements, scales), global_scale))
    low, high = torch.stack(codes).aminmax(dim=0)
    return low, high


def _sizes(low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest magnitude between two ends."""
    least = torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))
    return least, torch.maximum(low.abs(), high.abs())
