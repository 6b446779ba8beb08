"""Which tokens a query sees, and where a paged cache keeps them.

A query at position p sees the last `window` positions up to its own, {max(0, p - window + 1) .. p}, and besides, with
compression, entries i < (p + 1) // ratio: those whose `ratio` tokens are all there. With ratio 4 only the indexer's
choice of them. Nothing of another request. slot(i) = table[i // n] n + i % n for pages of n tokens (or of n entries).
Source: transformers 5.19, `DeepseekV4HCACompressor` (causal threshold); vLLM 0.33.0,
`compute_global_topk_indices_and_lens`.
"""

from __future__ import annotations

import torch


def window(positions: torch.Tensor, size: int) -> torch.Tensor:
    """positions (T,) -> (T, size) int64, numbers within the request in ascending order, then -1."""
    first = (positions - size + 1).clamp(min=0)
    seen = first[:, None] + torch.arange(size, device=positions.device)
    return torch.where(seen <= positions[:, None], seen, -1)


def entries(positions: torch.Tensor, ratio: int, most: int) -> torch.Tensor:
    """All compressed entries that each position sees: (T, most) int64, then -1."""
    seen = torch.arange(most, device=positions.device).expand(len(positions), -1)
    return torch.where(seen < (positions[:, None] + 1) // ratio, seen, -1)


def slots(numbers: torch.Tensor, requests: torch.Tensor, table: torch.Tensor, tokens: int) -> torch.Tensor:
    """numbers (T, K) within requests (T,), table (B, pages) -> slots (T, K) int64, -1 where there is no number."""
    inside = numbers.clamp(min=0)
    page = table.long()[requests.long()[:, None], inside // tokens]
    return torch.where(numbers >= 0, page * tokens + inside % tokens, -1)
