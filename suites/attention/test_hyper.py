"""Hyper-connections against the formulas in FP64: mixes and their matrices, a block's input, new streams, the head.

A mix is known to `accumulation` of the sum of |x fn|; a gate passes that on by a quarter at most, and the doubly
stochastic matrix doubles it, relative (rows and columns made to sum to one move no two entries further apart).
"""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.hyper_protocol import Mixing
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import v4_hyper
from suites.quant.bench import on_the_gpu
from suites.quant.exact import Exact

_STREAMS = 4
_BF16, _FP32 = 2.0**-8, 2.0**-18
#: What mixes are multiplied by: at 8 the order of steps, their number and eps all show.
_SCALES = (1.0, 4.0, 8.0)
#: rms_eps, eps: as in checkpoints, and so that each shows.
_EPS = ((1e-6, 1e-6), (2.0**-4, 2.0**-9))


class _Bench:
    def __init__(self, stack: Stack, context: Context):
        self.hyper = context.hyper
        self.can = self.hyper.capabilities()
        on_the_gpu(stack, context, self.can.device, self.can.runs)
        self.seed = context.target.seed
        self.exact = Exact(self.can.runs, self.seed)

    def generator(self, salt: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + salt)

    def streams(self, tokens: int, size: float, salt: int = 0) -> torch.Tensor:
        """Each stream of another size."""
        x = torch.randn(tokens, _STREAMS, self.can.hidden, generator=self.generator(tokens + salt)) * size
        return (x * torch.tensor([1, 0.5, 2, 0.25])[:, None]).bfloat16()

    def mixing(self, scale: float, eps: tuple[float, float], head: bool = False) -> Mixing:
        rows = _STREAMS if head else (2 + _STREAMS) * _STREAMS
        width = _STREAMS * self.can.hidden
        fn = torch.randn(rows, width, generator=self.generator(7)) / width**0.5
        base = torch.randn(rows, generator=self.generator(8)) / 2
        factors = torch.tensor([scale] if head else [scale / 2, scale / 4, scale])
        return Mixing(fn, factors, base, *eps)

    def given(self, streams: torch.Tensor, m: Mixing) -> tuple[torch.Tensor, Mixing]:
        fn, scale, base = (t.to(self.can.device) for t in m[:3])
        return streams.to(self.can.device), m._replace(fn=fn, scale=scale, base=base)

    def slack(self, streams: torch.Tensor, m: Mixing) -> torch.Tensor:
        """(T, 1): how far a mix may be off, before its scale."""
        flat = streams.double().flatten(1)
        size = torch.rsqrt(flat.square().mean(1, keepdim=True) + m.rms_eps)
        return self.can.accumulation * (flat.abs() @ m.fn.double().abs().T).amax(1, keepdim=True) * size

    def seen(self, fn: torch.Tensor) -> torch.Tensor:
        """fn in FP64, as `enter` multiplies with it."""
        return (v4_hyper.tf32(fn) if self.can.weights == "tf32" else fn).double()

    def near(self, what: str, got: torch.Tensor, due: torch.Tensor, radius: torch.Tensor) -> None:
        self.exact.inside(what, got.cpu().double(), due - radius, due + radius)

    def evidence(self, right: str) -> Evidence:
        self.exact.notes += self.can.notes
        return self.exact.evidence(right)


def _scenes(bench: _Bench) -> list[tuple[str, torch.Tensor, float, tuple[float, float]]]:
    """(what, streams, scale, eps): sizes, scales and eps; nothing but zeros; very large streams; no token."""
    found = [
        (f"{tokens} tokens, scale {scale:g}, eps {eps[0]:g} and {eps[1]:g}", bench.streams(tokens, 0.3), scale, eps)
        for tokens, scale in zip((1, 5, 130), _SCALES, strict=True)
        for eps in _EPS
    ]
    zeros = torch.zeros(3, _STREAMS, bench.can.hidden, dtype=torch.bfloat16)
    found.append(("zeros", zeros, 8.0, _EPS[0]))
    found.append(("streams of 1e4", bench.streams(5, 1e4), 4.0, _EPS[0]))
    found.append(("no token", zeros[:0], 4.0, _EPS[0]))
    return found


@claim("attention.hyper.enter")
def enter(stack: Stack, context: Context) -> Evidence:
    bench = _Bench(stack, context)
    for name, streams, scale, eps in _scenes(bench):
        m = bench.mixing(scale, eps)
        x, post, comb = bench.hyper.enter(*bench.given(streams, m))
        wide = streams.double()
        due = v4_hyper.enter(wide, bench.seen(m.fn), m.scale.double(), m.base.double(), *eps, m.rounds)
        off = bench.slack(streams, m) * scale
        bench.near(f"{name}: post", post, due.post, (off + _FP32).expand_as(due.post))
        relative = (2 * off + 4 * m.rounds * _FP32)[..., None]
        bench.near(f"{name}: comb", comb, due.comb, relative * due.comb)
        room = _BF16 * due.x.abs() + (off / 4 + _FP32) * wide.abs().sum(1)
        bench.near(f"{name}: the block's input", x, due.x, room)
    return bench.evidence("mixes, matrices and inputs as the formulas have them")


@claim("attention.hyper.leave")
def leave(stack: Stack, context: Context) -> Evidence:
    bench = _Bench(stack, context)
    for name, streams, scale, eps in _scenes(bench):
        m = bench.mixing(scale, eps)
        wide = streams.double()
        mixed = v4_hyper.enter(wide, m.fn.double(), m.scale.double(), m.base.double(), *eps, m.rounds)
        post, comb = mixed.post.float(), mixed.comb.float()
        y = torch.randn(len(streams), bench.can.hidden, generator=bench.generator(9)).bfloat16()
        device = bench.can.device
        got = bench.hyper.leave(*(t.to(device) for t in (y, streams, post, comb)))
        due = v4_hyper.leave(y.double(), wide, v4_hyper.Mixed(wide[:, 0], post.double(), comb.double()))
        terms = post.double()[..., None] * y.double().abs()[:, None] + comb.double().mT @ wide.abs()
        bench.near(f"{name}: new streams", got, due, _BF16 * due.abs() + _FP32 * terms)
    return bench.evidence("new streams are the old ones mixed, and the block's output")


@claim("attention.hyper.head")
def head(stack: Stack, context: Context) -> Evidence:
    bench = _Bench(stack, context)
    for name, streams, scale, eps in _scenes(bench):
        m = bench.mixing(scale, eps, head=True)
        got = bench.hyper.head(*bench.given(streams, m))
        wide = streams.double()
        due = v4_hyper.head(wide, m.fn.double(), m.scale.double(), m.base.double(), *eps)
        off = bench.slack(streams, m) * scale
        bench.near(f"{name}: collapsed", got, due, _BF16 * due.abs() + (off / 4 + _FP32) * wide.abs().sum(1))
    return bench.evidence("the streams collapse as the formula has it")
