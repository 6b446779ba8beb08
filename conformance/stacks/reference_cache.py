"""The reference stack's own reading and writing of the 584-byte cache: on bits, where `references/` uses casts."""

from __future__ import annotations

from functools import cache

import torch

from conformance.stacks import reference_numerics as numerics
from conformance.stacks.attention_protocol import Pages

_ROW, _BLOCKS = 576, 7


@cache
def _codes(device: torch.device) -> torch.Tensor:
    """(256,) float32. A code's low seven bits are a float's lowest exponent bits and highest mantissa bits."""
    code = torch.arange(256, dtype=torch.int32, device=device)
    magnitude = ((code & 0x7F) << 20).view(torch.float32) * 2.0**120
    magnitude = torch.where((code & 0x7F) == 0x7F, torch.nan, magnitude)
    return torch.where(code > 0x7F, -magnitude, magnitude)


def e4m3(codes: torch.Tensor) -> torch.Tensor:
    """uint8 -> float32."""
    return _codes(codes.device).index_select(0, codes.flatten().int()).view(codes.shape)


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """float32 -> codes uint8, to the nearest, ties to even, 448 at most."""
    size = x.abs().clamp(max=448)
    _, exponent = torch.frexp(size)
    exponent = torch.where(size == 0, -6, (exponent - 1).clamp(min=-6))
    steps = torch.ldexp(size, 3 - exponent).round().int()
    return ((exponent + 6) * 8 + steps + 128 * (x < 0)).to(torch.uint8)


def power(amax: torch.Tensor) -> torch.Tensor:
    """int32 exponents of the smallest powers of two that are no less than amax / 448, float32 in."""
    bits = (amax * (1 / 448.0)).view(torch.int32)
    return (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).int()


def split(pages: Pages) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of a page's two halves: data rows (pages, tokens, 576), scale rows (pages, tokens, 8)."""
    n = pages.tokens
    data, scales = pages.data[:, : n * _ROW], pages.data[:, n * _ROW : n * (_ROW + 8)]
    return data.unflatten(1, (n, _ROW)), scales.unflatten(1, (n, 8))


def fetch(pages: Pages, slots: torch.Tensor) -> torch.Tensor:
    """slots (T, K), all of them valid -> (T, K, 512) float32."""
    data, scales = split(pages)
    page, row = slots.long() // pages.tokens, slots.long() % pages.tokens
    bytes_, factors = data[page, row], numerics.scales(scales[page, row][..., :_BLOCKS])
    nope = e4m3(bytes_[..., :448]).unflatten(-1, (_BLOCKS, 64)).mul_(factors[..., None])
    rope = (bytes_[..., 448:].contiguous().view(torch.int16).int() << 16).view(torch.float32)
    return torch.cat((nope.flatten(-2), rope), dim=-1)


def packed(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """values (n, 512) float32, rotated -> data rows (n, 576), scale rows (n, 8)."""
    blocks = values[:, :448].unflatten(1, (_BLOCKS, 64))
    exponent = power(blocks.abs().amax(2).clamp(min=1e-4))
    codes = to_e4m3(torch.ldexp(blocks, -exponent[..., None]))
    rope = (numerics.to_bf16(values[:, 448:]).view(torch.int32) >> 16).to(torch.int16)
    data = torch.cat((codes.flatten(1), rope.contiguous().view(torch.uint8)), dim=1)
    scales = torch.cat((exponent + 127, torch.zeros_like(exponent[:, :1])), dim=1).to(torch.uint8)
    return data, scales


def store(pages: Pages, slots: torch.Tensor, values: torch.Tensor) -> None:
    """values (n, 512) float32 at slots (n,); -1 stores nothing."""
    kept = slots >= 0
    page, row = slots[kept] // pages.tokens, slots[kept] % pages.tokens
    data, scales = split(pages)
    data[page, row], scales[page, row] = packed(values[kept])
