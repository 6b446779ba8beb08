"""Attention on all ranks at once, each in a process and on a device of its own: what they all-reduce is the layer."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references.bound import all_reduced, deviations
from suites.attention import random_scenes
from suites.attention.bench import Bench, relative
from suites.attention.random_scenes import ALARM
from suites.attention.ranks import RATIO
from suites.attention.test_ranks import due_of, unsharded
from suites.joined import joined
from suites.moe.ranks import from_bytes


@claim("attention.world.sum")
def summed(stack: Stack, context: Context) -> Evidence:
    bench = Bench(context, "attend")
    world = context.ranks_on(bench.can.device, weights=False)
    if not world.together:
        raise NotSupported(f"the ranks run {world.words}: an all-reduce needs a device for each (in turn: ranks.sum)")
    phase = bench.can.phases[0]
    one = random_scenes.made(bench, RATIO, phase)
    told = world.each("suites.attention.ranks:sums", phase=phase)
    like = torch.empty(len(one.positions), context.geometry.hidden_size, device=bench.can.device)
    parts, totals = ([from_bytes(rank[name], like, torch.bfloat16) for rank in told] for name in ("part", "sum"))
    dues = [due_of(bench, one, rank) for rank in context.ranks]
    allowed = deviations(like.numel() * (len(dues) + 1), ALARM)
    measured = {}
    for rank, (part, due) in enumerate(zip(parts, dues, strict=True)):
        ratio = bench.within("its part at (token, output)", part, due.value, due.bound(allowed), rank)
        measured[f"rank {rank}"] = {"err/bound": round(ratio, 4), "relative": relative(part, due.value)}
    bench.findings += joined(phase, parts, totals, [rank for rank, one_ in enumerate(told) if one_["unsteady"]])
    due = all_reduced(dues)
    whole = unsharded(bench, one)
    ratio = bench.within("the all-reduce at (token, output)", totals[0], whole, due.bound(allowed))
    measured["all-reduce"] = {"err/bound": round(ratio, 4), "relative": relative(totals[0], whole)}
    own = "output" in bench.can.parts
    projection = "the stack's" if own else "this harness's, as the stack has none here"
    return bench.evidence(
        f"{phase}, ranks {world.words}: the all-reduce is within {ratio:.3f} of the unsharded layer's bound",
        "err/bound at most 1; the sum one that BF16 additions give, alike on all ranks",
        measured,
        1.0,
        [f"output projection: {projection}"],
        world.words,
    )
