"""MXFP4 and MXFP8 block scales: the power of two that each rule takes for a block's amax.

With amax = m * 2^e (0.5 <= m < 1), and the format's largest element L = ml * 2^el:

    floor   2^floor(log2 amax) / 2^floor(log2 L)     OCP MX v1.0, 6.3
    ceil    2^ceil(log2 amax) / 2^floor(log2 L)
    even    as floor, after amax is rounded to the element's own mantissa (halves up): AMD Quark, compressed-tensors
    rceil   the smallest power of two >= amax / L:   cuBLAS, FlashInfer's kernels
    trunc   the largest power of two <= amax / L:    vLLM #43557; up to half of amax is cut off

Names are torchao's; `trunc` has none. Bytes are limited to 0..254.
"""

from __future__ import annotations

import math

import torch

from references import codes

BLOCK = 32
#: Largest element, and bits of its mantissa.
ELEMENTS = {"mxfp4": (6.0, 1), "mxfp8": (448.0, 3)}


def scale_bytes(amax: torch.Tensor, format: str, rule: str, zero: int = 0) -> torch.Tensor:
    """amax >= 0, finite -> uint8. `zero` is the byte of amax 0."""
    largest, bits = ELEMENTS[format]
    most, power = math.frexp(largest)
    mantissa, exponent = torch.frexp(amax.double())
    found = {
        "floor": exponent - 1,
        "ceil": exponent - (mantissa == 0.5).int(),
        "even": exponent - 1 + (mantissa + 2.0 ** -(bits + 2) >= 1).int(),
        "rceil": exponent - 1 + (mantissa > most).int(),
        "trunc": exponent - 1 - (mantissa < most).int(),
    }[rule]
    byte = (found - (power - 1) + 127).clamp(0, 254)
    return torch.where(amax == 0, zero, byte).to(torch.uint8)


def amax(x: torch.Tensor) -> torch.Tensor:
    """(M, K) -> (M, K / 32)."""
    return x.double().unflatten(-1, (-1, BLOCK)).abs().amax(-1)


def element_codes(
    x: torch.Tensor, scales: torch.Tensor, format: str, ties: str = "even", zeros: bool = False
) -> torch.Tensor:
    """Codes (M, K), one a byte, for given scale bytes: dividing by a power of two is exact, and so are these.

    `zeros`: whatever lies under a scale byte of 0 becomes zero.
    """
    blocks = x.double().unflatten(-1, (-1, BLOCK))
    quotient = blocks / torch.exp2(scales.double() - 127).unsqueeze(-1)
    if zeros:
        quotient = torch.where((scales == 0).unsqueeze(-1), torch.copysign(torch.zeros_like(blocks), blocks), quotient)
    found = codes.encode_e2m1(quotient, ties) if format == "mxfp4" else codes.encode_e4m3(quotient)
    return found.flatten(-2)


def dequantize(elements: torch.Tensor, scales: torch.Tensor, format: str) -> torch.Tensor:
    """Codes (M, K), one a byte, and scales (M, K / 32) -> FP64."""
    values = codes.decode_e2m1(elements) if format == "mxfp4" else codes.decode_e4m3(elements)
    return (values.unflatten(-1, (-1, BLOCK)) * codes.decode_e8m0(scales).unsqueeze(-1)).flatten(-2)
