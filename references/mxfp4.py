"""MXFP4: E2M1 elements, two a byte, with one E8M0 scale per 32 of them.

Source: OCP Microscaling Formats v1.0, sections 5.3.3 (E2M1) and 5.4.1 (E8M0). The low nibble of a byte is the
even element, as DeepSeek-V4 checkpoints and every kernel named in this project store it.
"""

from __future__ import annotations

import torch

GROUP = 32
NAN_SCALE = 0xFF

#: Value of each 4-bit code: sign, two exponent bits, one mantissa bit.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def decode_codes(packed: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """uint8 (..., n) -> values (..., 2 n)."""
    value = torch.tensor(E2M1, dtype=dtype, device=packed.device)
    both = torch.stack((packed & 0xF, packed >> 4), dim=-1)
    return value[both.flatten(-2).int()]


def decode_scales(scales: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """E8M0 bytes -> 2^(byte - 127). 0x00 is 2^-127, no zero; 0xFF is NaN."""
    power = torch.exp2(scales.to(torch.float64) - 127).to(dtype)
    return power.masked_fill(scales == NAN_SCALE, torch.nan)


def dequantize(packed: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """(rows, n / 2) codes and (rows, n / 32) scales, uint8 -> (rows, n)."""
    values = decode_codes(packed, dtype).unflatten(-1, (-1, GROUP))
    return (values * decode_scales(scales, dtype).unsqueeze(-1)).flatten(-2)
