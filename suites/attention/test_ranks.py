"""Attention and output projection on every rank, summed: the unsharded layer, that never heard of virtual heads."""

from __future__ import annotations

from functools import reduce
from operator import add

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import attention_bound
from references.bound import Bounded, deviations
from suites.attention import output_weights as weights
from suites.attention import random_scenes
from suites.attention.bench import Bench, relative
from suites.attention.random_scenes import ALARM
from suites.attention.ranks import RATIO
from suites.attention.scene import Scene


@claim("attention.ranks.sum")
def summed(stack: Stack, context: Context) -> Evidence:
    bench = Bench(context, "attend", "output")
    phase = bench.can.phases[0]
    one = random_scenes.made(bench, RATIO, phase)
    whole, ranks = unsharded(bench, one), range(context.target.tp)
    total = torch.zeros_like(whole)
    for rank in ranks:
        with weights.opened(bench, weights.of_rank(bench, rank, weights.random)) as run:
            total += run(bench.attend(bench.call(one, rank, phase)), one.positions).double()
    right = reduce(add, (due_of(bench, one, rank) for rank in ranks))
    worst = bench.within("(token, output)", total, whole, right.bound(deviations(whole.numel(), ALARM)))
    measured = {"sum": {"err/bound": round(worst, 4), "relative": relative(total, whole)}}
    return bench.evidence(
        f"the sum of {context.target.tp} ranks is the unsharded layer", "err/bound at most 1", measured, 1.0
    )


def due_of(bench: Bench, one: Scene, rank: int) -> Bounded:
    """A rank's part: attention and projection of its real heads, virtual ones adding nothing."""
    real = random_scenes.known_due(bench, one, RATIO, bench.can.phases[0], rank)
    own = Bounded(*(torch.nn.functional.pad(part, (0, 0, 0, bench.heads - part.shape[1])) for part in real))
    wo_a, wo_b = weights.of_rank(bench, rank, weights.random).decoded()
    at = weights.table(bench).to(bench.can.device)
    return attention_bound.projected(own, one.positions, at, wo_a, wo_b, bench.groups, bench.can.projection)


def unsharded(bench: Bench, one: Scene) -> torch.Tensor:
    """(T, hidden) FP64: every head and group of the model, read off no rank."""
    at = weights.table(bench).to(bench.can.device)
    heads = random_scenes.every_head(bench, one)
    groups = range(bench.context.geometry.output_groups)
    return torch.stack([weights.unsharded(bench, group, heads, one.positions, at) for group in groups]).sum(0)
