"""Faults of hyper-connections: one step of the formulas left out, exchanged, or in another type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from conformance.faults.quant_seam import QuantFault
from conformance.stacks.hyper_protocol import Mixing
from references import v4_hyper

Tensor = torch.Tensor


class Steps(NamedTuple):
    """What a step is; each may be another than the right one."""

    mixes: Callable[[Tensor, Mixing], Tensor] = lambda x, m: (
        v4_hyper.unit_rms(x.flatten(1), m.rms_eps) @ m.fn.double().T
    )
    matrix: Callable[[Tensor, float, int], Tensor] = v4_hyper.sinkhorn
    post: float = 2.0
    pre_eps: float = 1.0  #: of eps


def _stepped(s: Steps) -> QuantFault:
    def enter(inner: Any, streams: Tensor, m: Mixing) -> tuple[Tensor, Tensor, Tensor]:
        n, x = streams.shape[1], streams.double()
        sizes = [n, n, n * n]
        parts = zip(s.mixes(x, m).split(sizes, 1), m.scale.double(), m.base.double().split(sizes), strict=True)
        pre, post, comb = (mix * scale + base for mix, scale, base in parts)
        pre = torch.sigmoid(pre) + s.pre_eps * m.eps
        matrix = s.matrix(comb.unflatten(1, (n, n)), m.eps, m.rounds)
        block = (pre[..., None] * x).sum(1).bfloat16()
        return block, (s.post * torch.sigmoid(post)).float(), matrix.float()

    def head(inner: Any, streams: Tensor, m: Mixing) -> Tensor:
        x = streams.double()
        share = torch.sigmoid(s.mixes(x, m) * m.scale.double() + m.base.double()) + s.pre_eps * m.eps
        return (share[..., None] * x).sum(1).bfloat16()

    return QuantFault(hyper={"enter": enter, "head": head})


def _each_stream(x: Tensor, m: Mixing) -> Tensor:
    """Mean squares over H, not over all streams."""
    return v4_hyper.unit_rms(x, m.rms_eps).flatten(1) @ m.fn.double().T


def _in_bf16(x: Tensor, m: Mixing) -> Tensor:
    """The product is rounded to BF16 before the norm."""
    flat = x.flatten(1)
    return (flat @ m.fn.double().T).bfloat16().double() * torch.rsqrt(flat.square().mean(1, keepdim=True) + m.rms_eps)


def _exchanged(x: Tensor, m: Mixing) -> Tensor:
    return v4_hyper.unit_rms(x.flatten(1), m.eps) @ m.fn.double().T


def _rows_last(logits: Tensor, eps: float, rounds: int) -> Tensor:
    matrix = v4_hyper.sinkhorn(logits, eps, rounds)
    return matrix / (matrix.sum(-1, keepdim=True) + eps)


def _without_eps(logits: Tensor, eps: float, rounds: int) -> Tensor:
    return v4_hyper.sinkhorn(logits, 0.0, rounds)


def _leaving(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> QuantFault:
    """`change(post, comb)`."""

    def leave(inner: Any, y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        made: Tensor = inner.leave(y, streams, *change(post, comb))
        return made

    return QuantFault(hyper={"leave": leave})


each_stream, in_bf16, eps_exchanged = (_stepped(Steps(step)) for step in (_each_stream, _in_bf16, _exchanged))
rows_last, without_eps = _stepped(Steps(matrix=_rows_last)), _stepped(Steps(matrix=_without_eps))
a_round_less = _stepped(Steps(matrix=lambda logits, eps, rounds: v4_hyper.sinkhorn(logits, eps, rounds - 1)))
no_sinkhorn = _stepped(Steps(matrix=lambda logits, eps, rounds: v4_hyper.sinkhorn(logits, eps, 1)))
post_without_two, pre_without_eps = _stepped(Steps(post=1.0)), _stepped(Steps(pre_eps=0.0))
transposed = _leaving(lambda post, comb: (post, comb.mT.contiguous()))
post_missing = _leaving(lambda post, comb: (torch.ones_like(post), comb))
