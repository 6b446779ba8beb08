"""Routing: which experts a token goes to, and with what weight. logits (M, experts) -> weights, ids (M, k).

DeepSeek-V4 scores with sqrt(softplus(logit)), chooses by score plus bias, weighs by the score alone, normalises and
scales by 1.5; its first layers take the experts from a table by token id (hash routing) and weigh them alike.
Source: DeepSeek-V4's config (`scoring_func`, `routed_scaling_factor`, `num_hash_layers`) and vLLM 0.33's router.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

Scoring = Literal["softmax", "sigmoid", "sqrtsoftplus"]


class Routed(NamedTuple):
    weights: torch.Tensor  # (M, k), the logits' type
    ids: torch.Tensor  # (M, k) int32


def scores(logits: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    match scoring:
        case "softmax":
            return torch.softmax(logits, -1)
        case "sigmoid":
            return torch.sigmoid(logits)
        case "sqrtsoftplus":
            return torch.nn.functional.softplus(logits).sqrt()
    raise ValueError(f"scoring {scoring!r}: softmax, sigmoid or sqrtsoftplus was due")


def top_k(
    logits: torch.Tensor,
    k: int,
    scoring: Scoring,
    bias: torch.Tensor | None = None,
    normalize: bool = True,
    scale: float = 1.0,
) -> Routed:
    """The k highest of score + bias; the bias (experts,) chooses and does not weigh."""
    score = scores(logits, scoring)
    ids = torch.topk(score if bias is None else score + bias, k, dim=-1).indices
    return Routed(_weights(score, ids, normalize, scale), ids.int())


def hashed(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    table: torch.Tensor,
    scoring: Scoring,
    normalize: bool = True,
    scale: float = 1.0,
) -> Routed:
    """The experts that `table` (vocab, k) lists for each token id (M,)."""
    ids = table[tokens].long()
    return Routed(_weights(scores(logits, scoring), ids, normalize, scale), ids.int())


def _weights(score: torch.Tensor, ids: torch.Tensor, normalize: bool, scale: float) -> torch.Tensor:
    chosen = score.gather(-1, ids)
    if normalize:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    return chosen * scale
