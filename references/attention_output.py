"""DeepSeek-V4's output projection: rotate back, project each group of heads, mix the groups.

    z_g = Wa_g [o_h for the heads h of group g],   y = Wb [z_0 .. z_(G-1)]

Heads are grouped in order; o (T, H, D) is (T, G, H / G x D) without moving a byte. Groups may be any number: a rank of
TP3 has 3 of 9, of which the last is virtual and holds zeros. Source: transformers 5.19, `DeepseekV4GroupedLinear`.
"""

from __future__ import annotations

import torch

from references.attention_rope import rotated


def fp8_blocks(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """E4M3 codes (n, m) with E8M0 scales of 128 x 128 blocks, uint8 -> (n, m). FP32 holds them exactly."""
    values = codes.view(torch.float8_e4m3fn).to(dtype)
    factor = torch.exp2(scales.to(dtype) - 127).repeat_interleave(128, 1)[:, : codes.shape[1]]
    for block, row in zip(values.split(128), factor, strict=True):
        block *= row
    return values


def grouped(o: torch.Tensor, groups: int) -> torch.Tensor:
    """(T, H, D) -> (G, T, H / G x D)."""
    return o.reshape(o.shape[0], groups, -1).transpose(0, 1)


def project(
    o: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, wo_a: torch.Tensor, wo_b: torch.Tensor, groups: int
) -> torch.Tensor:
    """o (T, H, D), wo_a (G R, H / G x D), wo_b (hidden, G R) -> (T, hidden) in FP64."""
    back = grouped(rotated(o, positions, table, inverse=True), groups)
    z = back @ wo_a.double().unflatten(0, (groups, -1)).transpose(1, 2)  # (G, T, R)
    return z.transpose(0, 1).flatten(1) @ wo_b.double().T
