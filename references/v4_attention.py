"""One attention layer of DeepSeek-V4 over a whole prompt: window, compressed keys, indexer, sinks, grouped output.

x (S, H) -> (S, H). Keys are the values. A query sees the last `sliding_window` tokens, and of the compressed entries
that were complete at its position all (ratio 128) or the indexer's best (ratio 4).
Source: DeepSeek-V4's report, section 2.3; held against transformers' `DeepseekV4Attention`.
"""

from __future__ import annotations

from typing import Any

import torch

from references.attention_compress import entries
from references.attention_rope import of_layer, rotated, table
from references.v4_hyper import rms_norm, unit_rms
from references.v4_weights import Weights

NEVER = float("-inf")


def attention(w: Weights, layer: str, ratio: int, x: torch.Tensor) -> torch.Tensor:
    """`layer` is the checkpoint's prefix: `layers.0.attn`."""
    c = w.config
    eps, heads, width = c["rms_norm_eps"], c["num_attention_heads"], c["head_dim"]
    positions = torch.arange(len(x))
    turn = table(of_layer(c, ratio), len(x))

    low = rms_norm(x @ w(f"{layer}.wq_a").T, w(f"{layer}.q_norm"), eps)
    q = unit_rms((low @ w(f"{layer}.wq_b").T).unflatten(-1, (heads, width)), eps)
    q = rotated(q, positions, turn).to(x.dtype)
    kv = rms_norm(x @ w(f"{layer}.wkv").T, w(f"{layer}.kv_norm"), eps)
    kv = rotated(kv, positions, turn).to(x.dtype)

    age = positions[:, None] - positions
    seen = (age >= 0) & (age < c["sliding_window"])
    if ratio:
        more = compressed(w, f"{layer}.compressor", ratio, x, turn)
        chosen = complete(positions, len(more), ratio)
        if ratio == 4:
            chosen &= indexed(w, f"{layer}.indexer", ratio, x, low, turn, chosen)
        kv, seen = torch.cat([kv, more]), torch.cat([seen, chosen], 1)

    score = torch.einsum("shd,td->sht", q, kv) * width**-0.5
    score = score.masked_fill(~seen[:, None], NEVER)
    sink = w(f"{layer}.attn_sink").expand(len(x), heads)[..., None]
    share = torch.softmax(torch.cat([score, sink], -1), -1)[..., :-1]
    out = rotated(torch.einsum("sht,td->shd", share, kv), positions, turn, inverse=True).to(x.dtype)

    grouped = out.reshape(len(x), c["o_groups"], -1)
    wo_a = w(f"{layer}.wo_a").unflatten(0, (c["o_groups"], -1))
    return torch.einsum("sgd,grd->sgr", grouped, wo_a).flatten(1) @ w(f"{layer}.wo_b").T


def complete(positions: torch.Tensor, entries: int, ratio: int) -> torch.Tensor:
    """(S, entries): entry e holds tokens [e ratio, (e + 1) ratio), and is there once the last of them is."""
    return torch.arange(entries) < ((positions + 1) // ratio)[:, None]


def compressed(w: Weights, name: str, ratio: int, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """(S // ratio, D)."""
    kv, gate = x @ w(f"{name}.wkv").T, x @ w(f"{name}.wgate").T
    eps = w.config["rms_norm_eps"]
    return entries(kv, gate, w(f"{name}.ape"), w(f"{name}.norm"), eps, turn, ratio).to(x.dtype)


def indexed(
    w: Weights, name: str, ratio: int, x: torch.Tensor, low: torch.Tensor, turn: torch.Tensor, there: torch.Tensor
) -> torch.Tensor:
    """(S, entries) bool: the `index_topk` entries of highest sum_h w_h relu(q_h k) among those `there`."""
    c: dict[str, Any] = w.config
    heads, width = c["index_n_heads"], c["index_head_dim"]
    keys = compressed(w, f"{name}.compressor", ratio, x, turn)
    if len(keys) <= c["index_topk"]:
        return torch.ones_like(there)
    q = (low @ w(f"{name}.wq_b").T).unflatten(-1, (heads, width))
    q = rotated(q, torch.arange(len(x)), turn).to(x.dtype)
    weight = x @ w(f"{name}.weights_proj").T * (heads * width) ** -0.5
    score = (torch.relu(torch.einsum("shd,td->sht", q, keys)) * weight[..., None]).sum(1)
    best = score.masked_fill(~there, NEVER).topk(c["index_topk"], -1).indices
    return torch.zeros_like(there).scatter(1, best, True)
