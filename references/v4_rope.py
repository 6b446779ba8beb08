"""DeepSeek-V4's rotary embedding: pairs of neighbouring channels, on the last channels of a head.

Layers without compression turn at theta `rope_theta`; layers with it at `compress_rope_theta`, stretched by YaRN
(Peng et al., arXiv 2309.00071), without YaRN's attention factor.
"""

from __future__ import annotations

import math
from typing import Any

import torch


def frequencies(config: dict[str, Any], compressed: bool) -> torch.Tensor:
    """(rope / 2,) float64, radians a position."""
    width = config["qk_rope_head_dim"]
    theta = config["compress_rope_theta"] if compressed else config["rope_theta"]
    exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
    plain = theta**-exponent
    if not compressed:
        return plain
    yarn = config["rope_scaling"]
    low, high = (
        _turning(turns, width, theta, yarn["original_max_position_embeddings"])
        for turns in (yarn["beta_fast"], yarn["beta_slow"])
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - ramp) + plain / yarn["factor"] * ramp


def _turning(turns: float, width: int, theta: float, positions: int) -> float:
    """The channel pair that turns so often over the trained positions."""
    return width * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(theta))


def rotate(x: torch.Tensor, positions: torch.Tensor, frequency: torch.Tensor, back: bool = False) -> torch.Tensor:
    """x (S, ..., D) with its last 2 len(frequency) channels turned by each row's position (S,); `back`: undone."""
    angle = positions.double()[:, None] * frequency * (-1 if back else 1)
    angle = angle.view(len(x), *[1] * (x.dim() - 2), len(frequency))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    still, turned = x[..., : -2 * len(frequency)], x[..., -2 * len(frequency) :]
    a, b = turned[..., 0::2], turned[..., 1::2]
    return torch.cat([still, torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)], -1)
