"""Replays against eager, bit for bit: fresh inputs, one input changed at a time, other routes, the same input again."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.graph.bench import GraphBench, Inputs
from suites.moe.test_repeat import same

#: Replays of a graph; where graphs are simulated, the first rank's largest alone is replayed that often.
_MANY, _FEW = 100, 10


def _replays(bench: GraphBench, rank: int, tokens: int) -> int:
    first = rank == bench.context.ranks[0] and tokens == max(bench.sizes)
    return _MANY if first or bench.bench.device.startswith("cuda") else _FEW


@claim("graph.moe.fresh")
def fresh(stack: Stack, context: Context) -> Evidence:
    bench, counts = GraphBench(context), dict[str, object]()
    for rank in context.ranks:
        with bench.layer(rank) as layer:
            for tokens in bench.sizes:
                held, differ = bench.held(tokens), 0
                with bench.captured(layer, held) as graph:
                    for number in range(_replays(bench, rank, tokens)):
                        inputs = bench.fresh(tokens, number)
                        got, want = bench.replayed(graph, held, inputs), bench.eager(layer, inputs)
                        differ += not bench.compare(rank, f"M={tokens}, replay {number}", got, want)
                counts[f"rank {rank}, M={tokens}"] = (
                    f"{differ} of {_replays(bench, rank, tokens)} replays differ from eager"
                )
    return bench.evidence("every replay on fresh inputs is eager's, bit for bit", counts)


@claim("graph.moe.inputs")
def inputs(stack: Stack, context: Context) -> Evidence:
    bench = GraphBench(context)
    tokens = max(bench.sizes)
    for rank in context.ranks:
        held = bench.held(tokens)
        with bench.layer(rank) as layer, bench.captured(layer, held) as graph:
            first, other = bench.fresh(tokens, 0), bench.fresh(tokens, 1)
            before = bench.replayed(graph, held, first)
            for name in first._fields:
                changed = first._replace(**{name: getattr(other, name)})
                got = bench.replayed(graph, held, changed)
                if bool(same(got, before).all()):
                    words = "the graph goes on with what it was captured with"
                    bench.find(rank, f"{name} alone changed", "another output", "the same, bit for bit", words)
                bench.compare(rank, f"{name} alone changed", got, bench.eager(layer, changed))
    return bench.evidence("tokens, routes and weights each move the replayed output to eager's")


@claim("graph.moe.routing")
def routing(stack: Stack, context: Context) -> Evidence:
    bench = GraphBench(context)
    b, tokens = bench.bench, max(bench.sizes)
    slots = torch.arange(b.slots, dtype=torch.int32, device=b.device)
    rows = torch.arange(tokens, dtype=torch.int32, device=b.device)[:, None]
    routes = {
        "all to the same experts": slots.repeat(tokens, 1),
        "all to the last experts": (b.experts - 1 - slots).repeat(tokens, 1),
        "each to its own": (rows * b.slots + slots) % b.experts,
        "all to the same experts again": slots.repeat(tokens, 1),
    }
    for rank in context.ranks:
        held = bench.held(tokens)
        with bench.layer(rank) as layer, bench.captured(layer, held) as graph:
            for number, (words, ids) in enumerate(routes.items()):
                x, _, weights = bench.fresh(tokens, number)
                given = Inputs(x, ids.int(), weights)
                got = bench.replayed(graph, held, given)
                bench.compare(rank, f"routes: {words}", got, bench.eager(layer, given))
    return bench.evidence(f"{len(routes)} ways to route {tokens} tokens, one after the other, give eager's bits")


@claim("graph.moe.steady")
def steady(stack: Stack, context: Context) -> Evidence:
    bench = GraphBench(context)
    for rank in context.ranks:
        for tokens in {min(bench.sizes), max(bench.sizes)}:
            held = bench.held(tokens)
            with bench.layer(rank) as layer, bench.captured(layer, held) as graph:
                given = bench.fresh(tokens, 0)
                first = bench.replayed(graph, held, given)
                for number in range(1, _replays(bench, rank, tokens)):
                    bench.compare(rank, f"M={tokens}, replay {number}", bench.replayed(graph, held, given), first)
    return bench.evidence("the same input gives the same bits in every replay")
