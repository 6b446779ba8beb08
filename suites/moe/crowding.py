"""Tokens that crowd on an expert: more than surely meet in one tile of the kernel (MoeCapabilities.tile_tokens)."""

from __future__ import annotations

import torch


def crowded(ids: torch.Tensor, tile_tokens: int) -> torch.Tensor:
    """Tokens (M,) bool, of which one expert at least serves more than `tile_tokens`; none where that is 0.

    ids (M, k), -1: no expert.
    """
    if not tile_tokens:
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    served = torch.bincount((ids.flatten() + 1).long(), minlength=1)
    served[0] = 0  # no expert
    return (served > tile_tokens)[ids.long() + 1].any(1)
