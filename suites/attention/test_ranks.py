"""Attention and output projection on every rank, summed: the unsharded layer, that never heard of virtual heads."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import attention_bound
from references.bound import Bounded, deviations
from suites.attention import output_weights as weights
from suites.attention import random_scenes
from suites.attention.bench import Bench
from suites.attention.random_scenes import ALARM


@claim("attention.ranks.sum")
def summed(stack: Stack, context: Context) -> Evidence:
    bench, measured = Bench(context, "attend", "output"), {}
    phase, g = bench.can.phases[0], context.geometry
    at = weights.table(bench).to(bench.can.device)
    one = random_scenes.made(bench, 4, phase)
    shape = (len(one.positions), g.hidden_size)
    total, whole = (torch.zeros(shape, dtype=torch.float64, device=bench.can.device) for _ in range(2))
    right: Bounded | None = None
    for rank in range(context.target.tp):
        cut = weights.of_rank(bench, rank, weights.random)
        with weights.opened(bench, cut) as run:
            total += run(bench.attend(bench.call(one, rank, phase)), one.positions).double()
        real = random_scenes.known_due(bench, one, 4, phase, rank)
        own = Bounded(*(torch.nn.functional.pad(part, (0, 0, 0, bench.heads - part.shape[1])) for part in real))
        wo_a, wo_b = cut.decoded()
        part = attention_bound.projected(own, one.positions, at, wo_a, wo_b, bench.groups, bench.can.projection)
        right = part if right is None else right + part
    heads = random_scenes.every_head(bench, one)
    for group in range(g.output_groups):
        whole += weights.unsharded(bench, group, heads, one.positions, at)
    assert right is not None
    allowed = deviations(whole.numel(), ALARM)
    worst = bench.within("(token, output)", total, whole, right.bound(allowed))
    measured["sum"] = {"err/bound": round(worst, 4), "relative": float((total - whole).norm() / whole.norm())}
    return bench.evidence(
        f"the sum of {context.target.tp} ranks is the unsharded layer", "err/bound at most 1", measured, 1.0
    )
