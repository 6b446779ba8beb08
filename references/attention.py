"""Sparse multi-query attention with one shared key-value head and sinks, in FP64.

    out_h = sum_j exp(s_hj) v_j / (exp(sink_h) + sum_j exp(s_hj)),    s_hj = scale q_h . v_j

Keys are values. The sink has no value: it only takes weight away; -inf is none. Where nothing is seen and the sink is
-inf as well, 0/0, zero is due. Tokens are taken a few at a time, so that 8,192 of them need no quadratic buffer.
Source: transformers 5.19, `eager_attention_forward` of DeepSeek-V4; vLLM 0.33.0, `flash_mla_with_kvcache`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

#: tokens (a slice) -> values (t, K, D) FP64 and which of them are seen (t, K)
Seen = Callable[[slice], tuple[torch.Tensor, torch.Tensor]]
_CHUNK_BYTES = 64 << 20


class Part(NamedTuple):
    """Of tokens [start, stop): weights (t, H, K) and values (t, K, D), output (t, H, D), log-sum-exp (t, H)."""

    tokens: slice
    weights: torch.Tensor
    values: torch.Tensor
    scores: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


def parts(q: torch.Tensor, seen: Seen, sinks: torch.Tensor, scale: float, keys: int) -> Iterator[Part]:
    """q (T, H, D), sinks (H,); `keys`: the most that a token sees, from which the size of a part follows."""
    step = max(1, _CHUNK_BYTES // (8 * max(keys, 1) * (q.shape[2] + 2 * q.shape[1])))
    for start in range(0, q.shape[0], step):
        tokens = slice(start, min(start + step, q.shape[0]))
        values, valid = seen(tokens)
        scores = scale * (q[tokens].double() @ values.transpose(1, 2))
        scores = scores.masked_fill(~valid[:, None], -torch.inf)
        sink = sinks.double()[None, :, None].expand(len(values), -1, 1)
        lse = torch.logsumexp(torch.cat((scores, sink), dim=2), dim=2)
        safe = lse.masked_fill(lse == -torch.inf, 0.0)
        weights = torch.exp(scores - safe[..., None])
        yield Part(tokens, weights, values, scores, weights @ values, lse)


def attend(
    q: torch.Tensor, seen: Seen, sinks: torch.Tensor, scale: float, keys: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out (T, H, D), log-sum-exp (T, H)) in FP64."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.zeros(q.shape[:2], dtype=torch.float64, device=q.device)
    for part in parts(q, seen, sinks, scale, keys):
        out[part.tokens], lse[part.tokens] = part.out, part.lse
    return out, lse
