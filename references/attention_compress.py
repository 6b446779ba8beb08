"""Compressed keys: one entry for every `ratio` tokens, softmax-weighted channel by channel, normalised, rotated.

    C_i = RMSNorm(sum_j softmax_j(Z_j + B_j) KV_j),   rotated at position ratio i

Ratio 128: j runs over tokens 128 i .. 128 i + 127. Ratio 4 overlaps: a token has two halves, Ca | Cb, and entry i takes
Ca of the four tokens before its own, and Cb of its own four; entry 0 has no Ca. B belongs to the place in the window,
Ca's as Cb's. Source: transformers 5.19, `DeepseekV4CSACompressor` and `DeepseekV4HCACompressor`.
"""

from __future__ import annotations

import torch

from references.attention_rope import rotated


def normalised(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMSNorm over the last axis, in FP64."""
    x = x.double()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x if weight is None else x * weight.double()


def pooled(kv: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor, ratio: int) -> torch.Tensor:
    """kv, gate (S, columns) of one request from position 0, bias (ratio, columns) -> (S // ratio, D) FP64."""
    whole = kv.shape[0] // ratio * ratio
    kv = kv[:whole].double().unflatten(0, (-1, ratio))
    gate = gate[:whole].double().unflatten(0, (-1, ratio)) + bias.double()
    if ratio == 4:
        (a, b), (gate_a, gate_b) = kv.chunk(2, dim=2), gate.chunk(2, dim=2)
        nothing = torch.full_like(gate_a[:1], -torch.inf)
        kv = torch.cat((torch.cat((torch.zeros_like(a[:1]), a))[:-1], b), dim=1)
        gate = torch.cat((torch.cat((nothing, gate_a))[:-1], gate_b), dim=1)
    return (kv * gate.softmax(dim=1)).sum(1)


def entries(
    kv: torch.Tensor,
    gate: torch.Tensor,
    bias: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    table: torch.Tensor,
    ratio: int,
) -> torch.Tensor:
    """(S // ratio, D) FP64, as they go into the cache."""
    found = normalised(pooled(kv, gate, bias, ratio), norm, eps)
    return rotated(found, torch.arange(len(found), device=kv.device) * ratio, table)
