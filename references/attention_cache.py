"""The paged FP8 cache of DeepSeek-V4, `fp8_ds_mla`: 584 bytes a token.

A page of n tokens: n rows of 576 bytes (448 E4M3, then 64 BF16), n rows of 8 bytes (7 E8M0 scales, one for 64 channels,
and a zero), then padding to a whole number of 576 bytes. Slot s is row s % n of page s // n.

    e = ceil(log2(max(amax, 1e-4) / 448)),   scale byte e + 127,   code = E4M3(x 2^-e), to the nearest, ties to even

Source: vLLM 0.33.0, `fused_qnorm_rope_kv_insert`; its CPU kernel (0.32.0) takes max(amax / 448, 1e-4) instead, which
differs up to an amax of 0.0273.
"""

from __future__ import annotations

from typing import Literal

import torch

NOPE, ROPE, BLOCK = 448, 64, 64
DATA, SCALES = NOPE + 2 * ROPE, 8
_LEAST = 1e-4

Small = Literal["amax", "scale"]


def page_bytes(tokens: int, fp8: bool = True) -> int:
    """64 tokens are 37,376 bytes, padded to 37,440; plain BF16 rows 65,536."""
    if not fp8:
        return tokens * 2 * (NOPE + ROPE)
    return -(-tokens * (DATA + SCALES) // DATA) * DATA


def places(slots: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(page, first data byte, first scale byte) of each slot, int64; slots >= 0."""
    page, row = slots.long() // tokens, slots.long() % tokens
    return page, row * DATA, tokens * DATA + row * SCALES


def rows(pages: torch.Tensor, slots: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What is stored at slots (n,) >= 0: data (n, 576) and scales (n, 8), uint8."""
    page, data, scales = places(slots, tokens)
    flat = pages.flatten()
    start = page * pages.shape[1]
    wide, narrow = torch.arange(DATA, device=pages.device), torch.arange(SCALES, device=pages.device)
    return flat[(start + data)[:, None] + wide], flat[(start + scales)[:, None] + narrow]


def write(pages: torch.Tensor, slots: torch.Tensor, tokens: int, data: torch.Tensor, scales: torch.Tensor) -> None:
    """Store data (n, 576) and scales (n, 8) at slots (n,); -1 stores nothing."""
    kept = slots >= 0
    page, at, scale_at = places(slots[kept], tokens)
    flat, start = pages.view(-1), page * pages.shape[1]
    wide, narrow = torch.arange(DATA, device=pages.device), torch.arange(SCALES, device=pages.device)
    flat[(start + at)[:, None] + wide] = data[kept]
    flat[(start + scale_at)[:, None] + narrow] = scales[kept]


def exponents(amax: torch.Tensor, small: Small = "amax") -> torch.Tensor:
    """Powers of two, FP64, of blocks with these amaxes."""
    amax = amax.double()
    least = amax.clamp(min=_LEAST) / 448 if small == "amax" else (amax / 448).clamp(min=_LEAST)
    mantissa, exponent = torch.frexp(least)
    return (exponent - (mantissa == 0.5).int()).double()


def encode(values: torch.Tensor, small: Small = "amax") -> tuple[torch.Tensor, torch.Tensor]:
    """values (n, 512), rotated -> data (n, 576), scales (n, 8), uint8."""
    blocks = values[:, :NOPE].double().unflatten(1, (-1, BLOCK))
    power = exponents(blocks.abs().amax(-1), small)
    codes = (blocks * torch.exp2(-power)[..., None]).clamp(-448, 448).float().to(torch.float8_e4m3fn)
    rope = values[:, NOPE:].to(torch.bfloat16).contiguous()
    data = torch.cat((codes.flatten(1).view(torch.uint8), rope.view(torch.uint8)), dim=1)
    return data, torch.nn.functional.pad((power + 127).to(torch.uint8), (0, 1))


def decode(data: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """data (n, 576), scales (n, 8) -> (n, 512) FP64. Every value is a BF16 number, unless a scale is extreme."""
    codes = data[:, :NOPE].contiguous().view(torch.float8_e4m3fn).double().unflatten(1, (-1, BLOCK))
    power = scales[:, : NOPE // BLOCK].double() - 127
    factor = torch.where(scales[:, : NOPE // BLOCK] == 255, torch.nan, torch.exp2(power))
    rope = data[:, NOPE:].contiguous().view(torch.bfloat16).double()
    return torch.cat(((codes * factor[..., None]).flatten(1), rope), dim=1)


def put(pages: torch.Tensor, slots: torch.Tensor, tokens: int, values: torch.Tensor, fp8: bool = True) -> None:
    """Store values (n, 512) at slots (n,); `fp8` False: as plain BF16 rows, 1024 bytes each."""
    if fp8:
        write(pages, slots, tokens, *encode(values))
        return
    kept = slots >= 0
    pages.view(-1, 2 * (NOPE + ROPE))[slots[kept]] = values[kept].bfloat16().view(torch.uint8)


def read(pages: torch.Tensor, slots: torch.Tensor, tokens: int, fp8: bool = True) -> torch.Tensor:
    """slots (...) -> (..., 512) FP64; slot -1 reads as zeros."""
    flat = slots.flatten()
    inside = flat.clamp(min=0)
    if fp8:
        values = decode(*rows(pages, inside, tokens))
    else:
        values = pages.view(-1, 2 * (NOPE + ROPE))[inside].view(torch.bfloat16).double()
    return torch.where(flat[:, None] >= 0, values, 0.0).view(*slots.shape, -1)
