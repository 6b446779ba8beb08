"""Positions as bytes: base-255 digits plus one, one digit a pass. 0 stays free for "zero fill".

Digit d of position p is 1 + (p // 255**d) % 255, so a pass writes only 1..255. Before each pass the destination
holds that pass's digit of a position that does not exist, 255**passes - 1, which is 255 in every pass.
"""

from __future__ import annotations

import torch

BASE = 255
PREFILL = 255
ZERO, UNTOUCHED, UNKNOWN = -1, -2, -3


def passes(count: int) -> int:
    """Passes that number `count` positions and leave the prefill's own position free: 2 up to 65,024."""
    n = 1
    while BASE**n - 1 < count:
        n += 1
    return n


def digit(positions: torch.Tensor, index: int) -> torch.Tensor:
    """Digit `index` of each position (int64, any shape) as uint8 in 1..255."""
    return (torch.div(positions, BASE**index, rounding_mode="floor").remainder_(BASE).add_(1)).to(torch.uint8)


def decode(digits: list[torch.Tensor], count: int) -> torch.Tensor:
    """Positions (int64) from the destination's bytes of every pass (uint8, equal shapes).

    ZERO where every pass reads 0, UNTOUCHED where every pass still holds the prefill, UNKNOWN where the digits
    name no position below `count` (or a byte was zero in only some passes).
    """
    position = torch.zeros(digits[0].shape, dtype=torch.int64)
    zeros = torch.zeros(digits[0].shape, dtype=torch.uint8)
    untouched = torch.ones(digits[0].shape, dtype=torch.bool)
    for index, seen in enumerate(digits):
        zeros += seen == 0
        untouched &= seen == PREFILL
        position += (seen.to(torch.int64) - 1) * BASE**index
    position[(position >= count) | (zeros > 0)] = UNKNOWN
    position[zeros == len(digits)] = ZERO
    position[untouched] = UNTOUCHED
    return position
