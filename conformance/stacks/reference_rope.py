"""The reference stack's own rotary embedding, in FP32: complex numbers, where `references/` writes out the pairs."""

from __future__ import annotations

import math
from typing import Any

import torch


def table(config: dict[str, Any], ratio: int, positions: int) -> torch.Tensor:
    """cos | sin, (positions, 64) float32. With compression: YaRN."""
    theta = float(config["compress_rope_theta"] if ratio else config["rope_theta"])
    pairs = torch.arange(32, dtype=torch.float32)
    frequency = torch.exp(pairs.double() * (-math.log(theta) / 32)).float()
    scaling = config.get("rope_scaling") if ratio else None
    if scaling:
        turns = scaling["original_max_position_embeddings"] / (2 * math.pi)
        first = math.floor(32 * math.log(turns / scaling["beta_fast"], theta))
        last = math.ceil(32 * math.log(turns / scaling["beta_slow"], theta))
        slow = torch.clamp((pairs - max(first, 0)) / (min(last, 63) - max(first, 0)), 0, 1)
        frequency = frequency * (1 - slow * (1 - 1 / scaling["factor"]))
    turned = torch.outer(torch.arange(positions, dtype=torch.float32), frequency)
    return torch.hstack((torch.cos(turned), torch.sin(turned)))


def rotate(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, back: bool = False) -> torch.Tensor:
    """x (T, ..., 512) float32: the last 64 channels as 32 complex numbers times exp(+-i angle)."""
    cos, sin = table.float()[positions].chunk(2, dim=1)
    turn = torch.complex(cos, -sin if back else sin).view(-1, *[1] * (x.dim() - 2), 32)
    tail = torch.view_as_complex(x[..., 448:].unflatten(-1, (32, 2)).contiguous()) * turn
    return torch.cat((x[..., :448], torch.view_as_real(tail).flatten(-2)), dim=-1)
