"""W2 and its scales, read back through loader, layout and GEMM: one hidden channel at a time.

W1 and W3 are rectangular identities (32 and 1), so token e_i makes the activation of channel i alone, exactly 32 (10 at
limit 10), and the output is W2's column i times that: on its own rank, and nothing on the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.geometry import SCALE_GROUP
from conformance.provenance.boxes import Span
from conformance.provenance.checkpoint import ONE_SCALE, Checkpoint, Constant, Diagonal, seeded
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references.finalize import bf16
from suites.moe import due, scales
from suites.moe.bench import Bench
from suites.moe.exact import Exact

_GATE = 32.0
_PAIR_OF_ONES = 0x22


@claim("moe.exact.w2")
def w2(stack: Stack, context: Context) -> Evidence:
    bench, random = Bench(context), seeded(context.target.seed)
    columns = {rank: bench.near(rank) for rank in context.ranks}
    return _probe(bench, _reading(random), columns, "moe.exact.w2", "every column of W2 reads back through the kernel")


@claim("moe.exact.w2_scale")
def w2_scale(stack: Stack, context: Context) -> Evidence:
    """All codes are 1, so that only scales are seen: the first and the last column of each group."""
    bench, random = Bench(context), seeded(context.target.seed, scales=16)
    codes = Checkpoint(random.w1, random.w1_scale, random.w3, random.w3_scale, Constant(_PAIR_OF_ONES), random.w2_scale)
    edges = {rank: [i for i in bench.near(rank) if i % SCALE_GROUP in (0, SCALE_GROUP - 1)] for rank in context.ranks}
    return _probe(bench, _reading(codes), edges, "moe.exact.w2_scale", "every scale of W2 reads back")


def _reading(c: Checkpoint) -> Checkpoint:
    """The same W2 behind gates of 32 and ups of 1."""
    return Checkpoint(Diagonal(), Constant(ONE_SCALE + 5), Diagonal(), Constant(ONE_SCALE), c.w2, c.w2_scale)


def _probe(bench: Bench, checkpoint: Checkpoint, columns: dict[int, list[int]], name: str, right: str) -> Evidence:
    g, limit = bench.context.geometry, bench.context.geometry.swiglu_limit
    if g.intermediate > g.hidden_size:
        raise NotSupported(f"an intermediate size of {g.intermediate} has no room in {g.hidden_size} inputs")
    given = scales.probe(scales.above(_GATE))
    h = due.lone_activation(_GATE, 1.0, bench.can.scheme, limit, given)
    exact = Exact(bench, name)
    for rank, chosen in columns.items():
        own, x = bench.own(rank), bench.one_hot(chosen)
        window = Span(chosen[0] // SCALE_GROUP * SCALE_GROUP, -(-(chosen[-1] + 1) // SCALE_GROUP) * SCALE_GROUP)
        mine = torch.tensor([own.start <= i < own.stop for i in chosen], device=bench.device)
        with bench.layer(rank, checkpoint, limit, global_scales=given) as layer:
            for expert in range(bench.experts):
                near = due.w2(checkpoint, expert, window, bench.hidden, bench.device) * h
                want = bf16(near[:, torch.tensor(chosen) - window.start].T * mine[:, None])
                got = bench.probe(layer, x, expert)
                exact.compare(rank, expert, got, want, *_told(bench, checkpoint, expert, chosen, got, h))
    notes = [f"activation {h:g}: gate {_GATE:g}, limit {limit}, {bench.can.scheme}"]
    return exact.evidence(right, bench.context.target.seed, notes)


def _told(
    bench: Bench, checkpoint: Checkpoint, expert: int, chosen: list[int], shown: torch.Tensor, h: float
) -> tuple[Callable[[int, int], str], Callable[[int, int], str]]:
    """Words for a difference: the place, and which checkpoint column answers instead (all of its rows tell)."""

    def where(token: int, row: int) -> str:
        return f"W2 row {row}, column {chosen[token]}"

    def meaning(token: int, row: int) -> str:
        if not bool(shown[token].any()):
            return "nothing answers"
        g = bench.context.geometry
        whole = due.w2(checkpoint, expert, Span(0, g.intermediate), g.hidden_size, bench.device)
        same = (bf16(whole * h) == shown[token].double()[:, None]).all(0).nonzero().flatten().tolist()
        if not same:
            return "no column of the checkpoint looks like that"
        return f"checkpoint column {same[0]} answers, {same[0] - chosen[token]:+d} off"

    return where, meaning
