"""MoE and all-reduce in one graph, on every rank at once. Ranks that run in turn cannot: the claim is not proved."""

from __future__ import annotations

import msgspec

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.graph.bench import MoeGraphBench

#: Replays of each batch size: simulated graphs are slow.
_MANY, _FEW = 100, 5


@claim("graph.world.fresh")
def fresh(stack: Stack, context: Context) -> Evidence:
    world, bench = context.world, MoeGraphBench(context)
    if not world.together:
        raise NotSupported(f"the ranks run {world.words}: an all-reduce needs a device for each")
    replays = _MANY if bench.device.startswith("cuda") else _FEW
    told = world.each("suites.graph.ranks:replayed", replays=replays)
    for rank, one in enumerate(told):
        bench.compared += one["compared"]
        bench.other_bits |= {rank: one["other_bits"]} if one["other_bits"] else {}
        bench.farthest = max(bench.farthest, one["farthest"])
        bench.findings += msgspec.convert(one["findings"], list[Finding])
    counts = {
        f"rank {rank}, M={tokens}": f"{differ} of {replays} replays differ from eager"
        for rank, one in enumerate(told)
        for tokens, differ in one["sizes"].items()
    }
    right = f"MoE and all-reduce in one graph of each of {len(told)} ranks, {world.words}: every replay is eager's"
    return bench.evidence(right, dict(counts))
