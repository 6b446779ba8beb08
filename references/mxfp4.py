"""MXFP4: E2M1 elements, two a byte, with one E8M0 scale per 32 of them.

Source: OCP Microscaling Formats v1.0, sections 5.3.3 (E2M1) and 5.4.1 (E8M0). The low nibble of a byte is the
even element, as DeepSeek-V4 checkpoints and every kernel named in this project store it.
"""

from __future__ import annotations

import math
from functools import cache

import torch

GROUP = 32
NAN_SCALE = 0xFF

#: Value of each 4-bit code: sign, two exponent bits, one mantissa bit.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@cache
def _quadruples(device: torch.device) -> torch.Tensor:
    """The four elements of every pair of bytes, as float16 (exact), seen as one int64 each: (65536,)."""
    value = torch.tensor(E2M1, dtype=torch.float16, device=device)
    pair = torch.arange(1 << 16, dtype=torch.int32, device=device)
    nibbles = torch.stack([pair >> shift & 0xF for shift in (0, 4, 8, 12)], dim=-1)
    return value[nibbles].view(torch.int64).flatten()


class Scratch:
    """Memory that one decoded block after the other is put in: first use of fresh pages costs more than decoding."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def take(
        self, name: str, shape: torch.Size | tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Uninitialised; what was taken under that name before is overwritten."""
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size or held.dtype != dtype or held.device != device:
            held = self._held[name] = torch.empty(size, dtype=dtype, device=device)
        return held[:size].view(shape)


def decode_codes(packed: torch.Tensor, scratch: Scratch | None = None) -> torch.Tensor:
    """uint8 (..., n) -> values (..., 2 n) as float16; n is even, so that two bytes can be looked up at once."""
    scratch = scratch or Scratch()
    size = (packed.numel() // 2,)
    pairs = scratch.take("pairs", size, torch.int32, packed.device)
    pairs.copy_(packed.contiguous().view(torch.int16).flatten()).bitwise_and_(0xFFFF)
    found = scratch.take("codes", size, torch.int64, packed.device)
    torch.index_select(_quadruples(packed.device), 0, pairs, out=found)
    return found.view(torch.float16).view(*packed.shape[:-1], -1)


def decode_scales(scales: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """E8M0 bytes -> 2^(byte - 127). 0x00 is 2^-127, no zero; 0xFF is NaN."""
    power = torch.exp2(scales.to(torch.float64) - 127).to(dtype)
    return power.masked_fill(scales == NAN_SCALE, torch.nan)


def dequantize(
    packed: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype = torch.float64,
    scratch: Scratch | None = None,
    name: str = "",
) -> torch.Tensor:
    """(rows, n / 2) codes and (rows, n / 32) scales, uint8 -> (rows, n); with `scratch`, in its memory of that name."""
    codes = decode_codes(packed, scratch)
    values = (scratch or Scratch()).take(name, codes.shape, dtype, codes.device).copy_(codes)
    values.unflatten(-1, (-1, GROUP)).mul_(decode_scales(scales, dtype).unsqueeze(-1))
    return values
