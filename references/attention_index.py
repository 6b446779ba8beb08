"""The C4 indexer: which compressed entries a query attends to.

    score_s = sum over heads h of w_h ReLU(q_h . k_s),    s < (p + 1) // 4,   the k highest

Where scores are equal any choice is right, unless a rule is declared (`lowest` numbers first). ReLU makes equal scores,
zeros, common. Source: transformers 5.19, `DeepseekV4IndexerScorer`.
"""

from __future__ import annotations

import torch


def scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """q (T, heads, 128), weights (T, heads), keys (T, entries, 128) of each token's request -> (T, entries) FP64, -inf
    where an entry is not complete."""
    each = (q.double() @ keys.double().transpose(1, 2)).relu()
    found = (weights.double()[..., None] * each).sum(1)
    numbers = torch.arange(keys.shape[1], device=q.device)
    return found.masked_fill(numbers >= (positions[:, None] + 1) // 4, -torch.inf)


def lowest(scored: torch.Tensor, k: int) -> torch.Tensor:
    """(T, k): the k highest, of equal ones those with the lowest numbers, ascending; -1 fills up."""
    order = torch.sort(scored, dim=1, descending=True, stable=True).indices[:, :k]
    valid = scored.gather(1, order) > -torch.inf
    chosen = torch.where(valid, order, scored.shape[1]).sort(1).values
    chosen = torch.where(chosen < scored.shape[1], chosen, -1)
    return torch.nn.functional.pad(chosen, (0, max(0, k - chosen.shape[1])), value=-1)
