"""Hyper-connections: n parallel residual streams, mixed round every block by doubly stochastic matrices.

Source: DeepSeek-V4's report, section 2.2 (mHC); held against transformers' `DeepseekV4HyperConnection`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Mixed(NamedTuple):
    x: torch.Tensor  #: (S, H), what the block is given
    post: torch.Tensor  #: (S, n), how much of its output each stream gets
    comb: torch.Tensor  #: (S, n, n), from old stream (first) to new stream


def unit_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return unit_rms(x, eps) * weight


def enter(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    rms_eps: float,
    eps: float,
    rounds: int,
) -> Mixed:
    """streams (S, n, H), fn ((2 + n) n, n H), scale (3,), base ((2 + n) n,): the block's input, and how to leave it."""
    n = streams.shape[1]
    w = unit_rms(streams.flatten(1), rms_eps) @ fn.T
    pre, post, comb = w.split([n, n, n * n], -1)
    b_pre, b_post, b_comb = base.split([n, n, n * n])
    pre = torch.sigmoid(pre * scale[0] + b_pre) + eps
    post = 2 * torch.sigmoid(post * scale[1] + b_post)
    comb = sinkhorn((comb * scale[2] + b_comb).unflatten(-1, (n, n)), eps, rounds)
    return Mixed((pre[..., None] * streams).sum(1), post, comb)


def sinkhorn(logits: torch.Tensor, eps: float, rounds: int) -> torch.Tensor:
    """Rows, then columns, made to sum to one, `rounds` times: the first row step is a softmax."""
    m = torch.softmax(logits, -1) + eps
    m = m / (m.sum(-2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        m = m / (m.sum(-1, keepdim=True) + eps)
        m = m / (m.sum(-2, keepdim=True) + eps)
    return m


def tf32(x: torch.Tensor) -> torch.Tensor:
    """float32 rounded to the nearest TF32: 10 stored bits of mantissa, ties away from zero (as `cvt.rna.tf32.f32`)."""
    return (x.view(torch.int32) + (1 << 12) & -(1 << 13)).view(torch.float32)


def leave(y: torch.Tensor, streams: torch.Tensor, mixed: Mixed) -> torch.Tensor:
    """The block's output y (S, H) and the old streams (S, n, H) -> new streams."""
    return mixed.post[..., None] * y[:, None] + mixed.comb.mT @ streams


def head(
    streams: torch.Tensor, fn: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, rms_eps: float, eps: float
) -> torch.Tensor:
    """The streams' last collapse: (S, n, H) -> (S, H)."""
    pre = torch.sigmoid(unit_rms(streams.flatten(1), rms_eps) @ fn.T * scale + base) + eps
    return (pre[..., None] * streams).sum(1)
