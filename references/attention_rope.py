"""DeepSeek-V4's rotary embedding: neighbours in pairs, the last 64 of 512 channels, angles position x frequency.

    (e, o) -> (e cos - o sin, e sin + o cos)          inverse: sin -> -sin

A table holds cos | sin of every position, (positions, 64), in FP32. Layers with compression 0 rotate with theta 10000;
those with 4 and 128 with theta 160000 and YaRN (factor 16 over 65,536), for queries, keys and compressed entries alike.
The output is rotated back at the query's position before wo_a. Source: transformers 5.19, `DeepseekV4RotaryEmbedding`;
Peng et al., arXiv 2309.00071, section 3.2 (YaRN's ramp; DeepSeek-V4 scales no cosine by mscale).
"""

from __future__ import annotations

import math
from typing import Any

import torch

ROPE = 64
#: Most that a right FP32 table may be off: 8 roundings in an angle (power, ramp, product), 2 in a cosine.
ANGLE, TABLE = 2.0**-21, 2.0**-22


def frequencies(theta: float, yarn: dict[str, Any] | None = None, width: int = ROPE) -> torch.Tensor:
    """(width / 2,) FP64, radians a position. `yarn`: factor, original_max_position_embeddings, beta_fast, beta_slow."""
    plain = theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    if not yarn:
        return plain
    length = yarn["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        """The pair that turns so many times over the original length."""
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair(yarn["beta_fast"])), 0)
    high = min(math.ceil(pair(yarn["beta_slow"])), width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain * (1 - ramp) + plain / yarn["factor"] * ramp


def of_layer(config: dict[str, Any], ratio: int) -> torch.Tensor:
    """Frequencies of a layer with this compression ratio, from the checkpoint's config.json."""
    width = config.get("qk_rope_head_dim", ROPE)
    if not ratio:
        return frequencies(config["rope_theta"], width=width)
    return frequencies(config["compress_rope_theta"], config.get("rope_scaling"), width)


def angles(frequency: torch.Tensor, positions: int) -> torch.Tensor:
    """(positions, 32) FP64."""
    return torch.arange(positions, dtype=torch.float64)[:, None] * frequency


def table(frequency: torch.Tensor, positions: int) -> torch.Tensor:
    """cos | sin: (positions, 64) FP64."""
    angle = angles(frequency, positions)
    return torch.cat((angle.cos(), angle.sin()), dim=1)


def rotated(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """x (T, ..., D) with positions (T,): the last channels, as many as the table is wide, rotated in FP64 by what it
    holds."""
    width = table.shape[1]
    cos, sin = table.double()[positions].view(-1, *[1] * (x.dim() - 2), table.shape[1]).chunk(2, dim=-1)
    even, odd = x[..., -width::2].double(), x[..., -width + 1 :: 2].double()
    sin = -sin if inverse else sin
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :-width].double(), turned), dim=-1)


def turn_size(x: torch.Tensor) -> torch.Tensor:
    """(T, ..., D): |even| + |odd| of each channel's pair, 0 where nothing turns. FP32 is off by 2^-23 of it at most."""
    pair = x[..., -ROPE:].double().abs().unflatten(-1, (-1, 2)).sum(-1, keepdim=True).expand(*x.shape[:-1], -1, 2)
    return torch.cat((torch.zeros_like(x[..., :-ROPE], dtype=torch.float64), pair.flatten(-2)), dim=-1)
