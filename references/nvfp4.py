"""NVFP4: E2M1 elements, one E4M3 scale per 16 of them along K, one float32 global scale a tensor.

    value = element * scale * global scale
    scale = E4M3(amax / 6 / global scale);  element = E2M1(x / (scale as rounded * global scale))

What libraries do differently is a parameter: `floor`, the smallest scale byte of a block that is not all zeros (0: a
scale may round to zero, and then all elements of the block are zero); `underflow`, the byte in place of a scale that
rounds to zero; `zero`, the byte of a block of zeros; `up`,
scales rounded up. Source: ModelOpt and vLLM (`amax / 2688`; 2688 = 6 * 448); cuDNN's block-scale-quantize rounds up.

Real quantisers compute in float32, with reciprocals in place of divisions. So there are two ways to hold them to
this: where every factor is a power of two, the bytes are exact; elsewhere they lie between `lowest` and `highest`,
which take EPSILON off and on. EPSILON is 8 units of float32: two approximate reciprocals of one unit each, and three
roundings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from references import codes

BLOCK = 16
LARGEST = 6.0 * 448.0
EPSILON = 2.0**-21


class GlobalScales(NamedTuple):
    """Of a MoE layer's input and of its activation: static, from the checkpoint (ModelOpt's `input_scale`)."""

    input: float = 1.0
    activation: float = 1.0


class Nvfp4(NamedTuple):
    """`codes` (M, K) one a byte, `scales` (M, K / 16), uint8."""

    codes: torch.Tensor
    scales: torch.Tensor


def own_global_scale(x: torch.Tensor) -> float:
    """amax / 2688: with it the largest scale is 448."""
    return float(x.double().abs().max()) / LARGEST


def scale_quotients(x: torch.Tensor, global_scale: float) -> torch.Tensor:
    """amax / 6 / global scale of each block: (M, K / 16), FP64."""
    return x.double().unflatten(-1, (-1, BLOCK)).abs().amax(-1) / 6 / global_scale


def scale_bytes(
    quotient: torch.Tensor, up: bool = False, floor: int = 0, underflow: int = 0, zero: int = 0
) -> torch.Tensor:
    """-> uint8, saturating at 0x7E."""
    grid = codes.e4m3_grid()
    found = torch.searchsorted(grid, quotient.contiguous()) if up else codes.nearest(quotient, grid)
    found = torch.where(found == 0, underflow, found).clamp(min=floor, max=codes.NAN_E4M3 - 1)
    return torch.where(quotient == 0, zero, found).to(torch.uint8)


def element_codes(
    x: torch.Tensor, scales: torch.Tensor, global_scale: float, ties: str = "even", factor: float = 1.0
) -> torch.Tensor:
    """Codes (M, K) for given scale bytes; under a scale of 0 every magnitude is 0. `factor` goes into the
    quotient."""
    step = (codes.decode_e4m3(scales) * global_scale).unsqueeze(-1)
    blocks = x.double().unflatten(-1, (-1, BLOCK))
    quotient = torch.where(step == 0, torch.copysign(torch.zeros_like(blocks), blocks), blocks / step * factor)
    return codes.encode_e2m1(quotient, ties).flatten(-2)


def quantize(
    x: torch.Tensor,
    global_scale: float,
    up: bool = False,
    floor: int = 0,
    underflow: int = 0,
    zero: int = 0,
    ties: str = "even",
) -> Nvfp4:
    """x (M, K), K a multiple of 16."""
    scales = scale_bytes(scale_quotients(x, global_scale), up, floor, underflow, zero)
    return Nvfp4(element_codes(x, scales, global_scale, ties), scales)


def dequantize(q: Nvfp4, global_scale: float | torch.Tensor) -> torch.Tensor:
    """-> FP64 (M, K)."""
    step = codes.decode_e4m3(q.scales) * global_scale
    return (codes.decode_e2m1(q.codes).unflatten(-1, (-1, BLOCK)) * step.unsqueeze(-1)).flatten(-2)


def rounded(x: torch.Tensor, global_scale: float) -> torch.Tensor:
    """(M, K) -> what is left of it, FP64."""
    return rounded_by(x, global_scale, {})


def rounded_by(x: torch.Tensor, global_scale: float, rules: dict[str, Any]) -> torch.Tensor:
    """The same by `quantize`'s other parameters."""
    return dequantize(quantize(x, global_scale, **rules), global_scale)
