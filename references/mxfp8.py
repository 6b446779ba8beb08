"""MXFP8: E4M3 elements with one E8M0 scale per 32, as FlashInfer's and vLLM's activation quantisers make them.

The scale is amax * FP32(1 / 448) rounded *up* to a power of two; elements round to nearest even, saturating at 448
(which only a scale of 2^127 can make them do). A scale byte of 0 (amax * 1 / 448 up to 2^-127) makes zeros.
Source: FlashInfer 0.7.2, `mxfp8_quantize`: equal to its host code bit for bit, 37 x 4096 values from 2^-40 to 2^40,
tests/references/test_host_quantisers.py. Known differences: vLLM's torch quantiser keeps values under a scale byte of
0, and where amax is a few units above 448 * 2^n its FP32 logarithm takes 2^n for the scale, so that amax saturates.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

GROUP = 32
LARGEST = 448.0
_HALF_OF_SMALLEST = 0x400000  # bits of 2^-127, half of the smallest normal number


class Mxfp8(NamedTuple):
    """E4M3 `codes` (..., n) as float8_e4m3fn, E8M0 `scales` (..., n / 32) as uint8."""

    codes: torch.Tensor
    scales: torch.Tensor


def scale_above(value: torch.Tensor) -> torch.Tensor:
    """float32 -> the E8M0 byte of the smallest power of two that is not below it; up to 2^-127 that is 0."""
    bits = value.contiguous().view(torch.int32)
    exponent, mantissa = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    up = torch.where(exponent == 0, mantissa > _HALF_OF_SMALLEST, mantissa > 0)
    byte = (exponent + up.int()).clamp(max=254)
    return torch.where(value.isnan(), 255, byte).to(torch.uint8)


def quantize(x: torch.Tensor, scales: torch.Tensor | None = None) -> Mxfp8:
    """(..., n) of any float type -> codes and scales; `scales` overrides the rule's own. Scale 0 makes zeros.

    A NaN spoils its own element alone: hardware's maximum passes it over.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    if scales is None:
        amax = groups.abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(-1)
        scales = scale_above(amax * torch.tensor(1 / LARGEST, dtype=torch.float32))
    inverse = torch.exp2(127 - scales.double()).unsqueeze(-1)
    scaled = (groups.double() * inverse).clamp(-LARGEST, LARGEST)
    zero = torch.copysign(torch.zeros_like(scaled), scaled)
    scaled = torch.where((scales == 0).unsqueeze(-1) & ~scaled.isnan(), zero, scaled)
    return Mxfp8(scaled.float().to(torch.float8_e4m3fn).flatten(-2), scales)


def dequantize(q: Mxfp8, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """-> (..., n)."""
    power = torch.exp2(q.scales.double() - 127).masked_fill(q.scales == 0xFF, torch.nan)
    return (q.codes.double().unflatten(-1, (-1, GROUP)) * power.unsqueeze(-1)).flatten(-2).to(dtype)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """What is left of x after quantising it, in x's own type."""
    return dequantize(quantize(x), x.dtype)
