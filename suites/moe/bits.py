"""Bits of two results, element by element."""

from __future__ import annotations

import torch


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """NaN equals itself, and the sign of a zero counts."""
    bits = torch.int16 if a.dtype == torch.bfloat16 else torch.int32
    return a.view(bits) == b.view(bits)
