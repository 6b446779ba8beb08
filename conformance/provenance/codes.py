"""Codes 1..252 as elements of any dtype, chosen so that a copy, or a right conversion between dtypes, keeps them apart.

One-byte types hold the code as a byte that is no NaN; wider integers hold it as a number; floats hold one of 252 whole
numbers of at most 8 significant bits, none of them a power of two. So BF16 and F32 hold the same numbers exactly, and
an E8M0 byte that was turned into a float, a power of two, is told from all of them.
"""

from __future__ import annotations

import torch

COUNT = 252
ZERO, UNTOUCHED, MINUS_INF, UNKNOWN = 0, 253, 254, 255
#: What F32 holds beside the number: lost where it was rounded to BF16 or F16 on the way.
FRACTION = 2.0**-10
#: Every byte of a parameter before loading: a NaN, or -1, in every dtype, and no code's byte.
PREFILL = 0xFF

_TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "I32": torch.int32,
    "I64": torch.int64,
}
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLOATS = ("bfloat16", "float16", "float32")


def encode(codes: torch.Tensor, dtype: str) -> bytes:
    """Stored bytes of elements that carry these codes (int64, 1..252). `dtype` is safetensors' name."""
    if dtype == "F8_E4M3":  # 0x7F is NaN, 0x80 minus zero
        return bytes(torch.where(codes <= 126, codes, codes + 2).to(torch.uint8).tolist())
    if dtype in ("F8_E8M0", "U8", "I8"):
        return bytes(codes.to(torch.uint8).tolist())
    values = _number(codes) if dtype in ("BF16", "F16", "F32") else codes
    if dtype == "F32":
        values = values + FRACTION
    return bytes(values.to(_TORCH[dtype]).view(torch.uint8).numpy().tobytes())


def _number(codes: torch.Tensor) -> torch.Tensor:
    """129..255 and 258..508: 8 significant bits, no power of two."""
    return torch.where(codes <= 127, codes + 128, 256 + 2 * (codes - 127)).to(torch.float64)


def raw(data: torch.Tensor, dtype: str, element: int) -> torch.Tensor:
    """A parameter's bytes (flat uint8) as integers of its element's size."""
    return data.view(_RAW[element])


def decode(elements: torch.Tensor, dtype: str) -> torch.Tensor:
    """Codes (uint8) of raw elements of that dtype (torch's name): 1..252, ZERO, UNTOUCHED, MINUS_INF or UNKNOWN."""
    if dtype in _FLOATS:
        return _decode_floats(elements, getattr(torch, dtype))
    found = torch.full(elements.shape, UNKNOWN, dtype=torch.uint8)
    if dtype == "float8_e4m3fn":
        wide = elements.to(torch.int64)
        found = torch.where(wide <= 126, wide, torch.where(wide >= 129, wide - 2, UNKNOWN)).to(torch.uint8)
        found[wide == PREFILL] = UNTOUCHED
        return found
    wide = elements.to(torch.int64)
    good = (wide >= 0) & (wide <= COUNT)
    found[good] = wide[good].to(torch.uint8)
    found[wide == (PREFILL if elements.dtype == torch.uint8 else -1)] = UNTOUCHED
    return found


def rounded(elements: torch.Tensor, dtype: str) -> bool:
    """Do raw elements of a float32 parameter hold whole numbers, where F32 codes have a fraction?"""
    if dtype != "float32":
        return False
    values = elements.contiguous().view(torch.float32)
    return bool((torch.isfinite(values) & (values > 128) & (values == values.round())).any())


def _decode_floats(elements: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    found = torch.full(elements.shape, UNKNOWN, dtype=torch.uint8)
    values = elements.contiguous().view(kind).to(torch.float64)
    if kind is torch.float32:
        exact = values - FRACTION
        values = torch.where((exact == exact.round()) & (exact > 128), exact, values)
    whole = torch.isfinite(values) & (values == values.round())
    low = whole & (values > 128) & (values < 256)
    high = whole & (values > 256) & (values <= 256 + 2 * (COUNT - 127)) & (values % 2 == 0)
    found[low] = (values[low] - 128).to(torch.uint8)
    found[high] = ((values[high] - 256) / 2 + 127).to(torch.uint8)
    mantissa, exponent = torch.frexp(values)
    power = torch.isfinite(values) & (mantissa == 0.5)
    scale = exponent - 1 + 127  # an E8M0 code, read as the float that it stands for
    power &= (scale >= 1) & (scale <= COUNT)
    found[power] = scale[power].to(torch.uint8)
    found[values == 0] = ZERO
    found[torch.isneginf(values)] = MINUS_INF
    found[elements == -1] = UNTOUCHED
    return found
