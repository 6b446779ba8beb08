"""Replays against eager, bit for bit: fresh inputs, one input changed at a time, other routes, the same input again."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.graph.attention import AttentionGraphBench
from suites.graph.bench import GraphBench, MoeGraphBench
from suites.graph.layer import LayerGraphBench
from suites.moe.bits import same

#: Replays of a graph; where graphs are simulated, the first rank's largest MoE alone is replayed that often.
_MANY, _FEW, _FEWEST = 100, 10, 4


@claim("graph.moe.fresh")
def moe_fresh(stack: Stack, context: Context) -> Evidence:
    return _fresh(MoeGraphBench(context))


@claim("graph.attention.fresh")
def attention_fresh(stack: Stack, context: Context) -> Evidence:
    return _fresh(AttentionGraphBench(context))


@claim("graph.layer.fresh")
def layer_fresh(stack: Stack, context: Context) -> Evidence:
    return _fresh(LayerGraphBench(context))


@claim("graph.moe.inputs")
def moe_inputs(stack: Stack, context: Context) -> Evidence:
    return _inputs(MoeGraphBench(context))


@claim("graph.attention.inputs")
def attention_inputs(stack: Stack, context: Context) -> Evidence:
    return _inputs(AttentionGraphBench(context))


@claim("graph.layer.inputs")
def layer_inputs(stack: Stack, context: Context) -> Evidence:
    return _inputs(LayerGraphBench(context))


@claim("graph.moe.steady")
def moe_steady(stack: Stack, context: Context) -> Evidence:
    return _steady(MoeGraphBench(context))


@claim("graph.attention.steady")
def attention_steady(stack: Stack, context: Context) -> Evidence:
    return _steady(AttentionGraphBench(context))


def _replays(bench: GraphBench, rank: int, tokens: int) -> int:
    if tokens not in bench.runner.sizes:  # by night alone
        return _FEWEST
    if bench.device.startswith("cuda"):
        return _MANY
    if bench.name != "graph":
        return _FEWEST
    return _MANY if rank == bench.context.ranks[0] and tokens == max(bench.runner.sizes) else _FEW


def _fresh(bench: GraphBench) -> Evidence:
    counts = dict[str, object]()
    for rank in bench.context.ranks:
        with bench.layer(rank) as layer:
            for tokens in bench.sizes:
                held, differ, replays = bench.held(tokens), 0, _replays(bench, rank, tokens)
                with bench.captured(layer, held, rank) as graph:
                    for number in range(replays):
                        inputs = bench.fresh(tokens, number, rank)
                        got, want = bench.replayed(graph, held, inputs), bench.eager(layer, inputs)
                        differ += not bench.alike(rank, f"M={tokens}, replay {number}", got, want, inputs)
                counts[f"rank {rank}, M={tokens}"] = f"{differ} of {replays} replays differ from eager"
    return bench.evidence("every replay on fresh inputs is eager's, bit for bit", counts)


def _inputs(bench: GraphBench) -> Evidence:
    tokens = max(bench.sizes)
    for rank in bench.context.ranks:
        held = bench.held(tokens)
        with bench.layer(rank) as layer, bench.captured(layer, held, rank) as graph:
            first, other = bench.fresh(tokens, 0, rank), bench.fresh(tokens, 1, rank)
            before = bench.replayed(graph, held, first)
            for name in bench.mattering(rank):
                changed = first | {name: other[name]}
                got = bench.replayed(graph, held, changed)
                if bool(same(got, before).all()):
                    words = "the graph goes on with what it was captured with"
                    bench.find(rank, f"{name} alone changed", "another output", "the same, bit for bit", words)
                bench.alike(rank, f"{name} alone changed", got, bench.eager(layer, changed), changed)
    names = ", ".join(bench.mattering(bench.context.ranks[0]))
    return bench.evidence(f"each of {names} moves the replayed output to eager's")


def _steady(bench: GraphBench) -> Evidence:
    for rank in bench.context.ranks:
        for tokens in sorted({min(bench.sizes), max(bench.runner.sizes), max(bench.sizes)}):
            held = bench.held(tokens)
            with bench.layer(rank) as layer, bench.captured(layer, held, rank) as graph:
                given = bench.fresh(tokens, 0, rank)
                first = bench.replayed(graph, held, given)
                for number in range(1, _replays(bench, rank, tokens)):
                    got = bench.replayed(graph, held, given)
                    bench.alike(rank, f"M={tokens}, replay {number}", got, first, given)
    return bench.evidence("the same input gives the same bits in every replay")


@claim("graph.moe.routing")
def routing(stack: Stack, context: Context) -> Evidence:
    bench = MoeGraphBench(context)
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
        with bench.layer(rank) as layer, bench.captured(layer, held, rank) as graph:
            for number, (words, ids) in enumerate(routes.items()):
                given = bench.fresh(tokens, number) | {"ids": ids.int()}
                got, want = bench.replayed(graph, held, given), bench.eager(layer, given)
                bench.alike(rank, f"routes: {words}", got, want, given)
    return bench.evidence(f"{len(routes)} ways to route {tokens} tokens, one after the other, give eager's bits")


@claim("graph.attention.lengths")
def lengths(stack: Stack, context: Context) -> Evidence:
    """A batch that grows, ends and starts anew; and the same tokens in other pages, which may move no bit."""
    bench, tokens = AttentionGraphBench(context), 0
    for rank in context.ranks:
        tokens = max(bench.sizes)
        held, given = bench.held(tokens), bench.fresh(tokens, 0, rank)
        most = [torch.full_like(given[f"{name}_lengths"], columns) for name, (columns, _, _) in bench.caches.items()]
        row = torch.arange(tokens, device=bench.device)
        steps = {
            "1 token each": [torch.ones_like(most[0]), torch.zeros_like(most[1])],
            "all columns": most,
            "none at all": [torch.zeros_like(one) for one in most],
            "the window alone": [most[0], torch.zeros_like(most[1])],
            "the entries alone": [torch.zeros_like(most[0]), most[1]],
            "a different number each": [(row * 31 + 1) % (one + 1) for one in most],
            "all columns again": most,
        }
        with bench.layer(rank) as layer, bench.captured(layer, held, rank) as graph:
            for words, (window, entries) in steps.items():
                asked = bench.sized(given, window, entries)
                got = bench.replayed(graph, held, asked)
                bench.compare(rank, f"lengths: {words}", got, bench.eager(layer, asked))
                elsewhere = bench.replayed(graph, held, bench.moved(asked))
                bench.compare(rank, f"lengths: {words}, in other pages", elsewhere, got, "pages are read that it left")
    return bench.evidence(f"lengths of {tokens} requests, and the pages that they are in, may change between replays")
