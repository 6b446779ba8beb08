"""Memory: graphs that share a pool, and memory that others have used in the meantime."""

from __future__ import annotations

from contextlib import ExitStack

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.graph.attention import AttentionGraphBench
from suites.graph.bench import GraphBench, MoeGraphBench

_ROUNDS = 5


@claim("graph.moe.pool")
def moe_pool(stack: Stack, context: Context) -> Evidence:
    return _pool(MoeGraphBench(context))


@claim("graph.attention.pool")
def attention_pool(stack: Stack, context: Context) -> Evidence:
    return _pool(AttentionGraphBench(context))


@claim("graph.moe.memory")
def moe_memory(stack: Stack, context: Context) -> Evidence:
    return _memory(MoeGraphBench(context))


@claim("graph.attention.memory")
def attention_memory(stack: Stack, context: Context) -> Evidence:
    return _memory(AttentionGraphBench(context))


def _pool(bench: GraphBench) -> Evidence:
    """Captured from the largest down, as stacks do. After each replay the other graphs' inputs and outputs are looked
    at, which the replay had no business with."""
    sizes = sorted(bench.sizes, reverse=True)[:2]
    for rank in bench.context.ranks:
        with bench.layer(rank) as layer, ExitStack() as graphs:
            shared, all_held = layer.pool(), [bench.held(tokens) for tokens in sizes]
            made = [graphs.enter_context(bench.captured(layer, held, rank, shared)) for held in all_held]
            for number in range(_ROUNDS):
                given = [bench.fresh(tokens, number, rank) for tokens in sizes]
                due = [bench.eager(layer, inputs) for inputs in given]
                for held, inputs in zip(all_held, given, strict=True):
                    held.put(inputs)
                order = range(len(sizes)) if number % 2 else reversed(range(len(sizes)))
                for index in order:
                    made[index].replay()
                for tokens, held, inputs, want in zip(sizes, all_held, given, due, strict=True):
                    bench.alike(rank, f"graph of {tokens}, round {number}", held.buffers.out.clone(), want, inputs)
                    if held.changed(inputs):
                        words = "another graph of the pool wrote there"
                        bench.find(rank, f"graph of {tokens}, round {number}", "inputs as they were", "changed", words)
    return bench.evidence(
        f"graphs of {' and '.join(map(str, sizes))} tokens in one pool disturb each other in no order"
    )


def _memory(bench: GraphBench) -> Evidence:
    counts, tokens = dict[str, object](), max(bench.sizes)
    for rank in bench.context.ranks:
        held = bench.held(tokens)
        with bench.layer(rank) as layer, bench.captured(layer, held, rank) as graph:
            given = [bench.fresh(tokens, number, rank) for number in range(_ROUNDS)]
            due = [bench.eager(layer, inputs) for inputs in given]
            for number, (inputs, want) in enumerate(zip(given, due, strict=True)):
                layer.disturb()
                got = bench.replayed(graph, held, inputs)
                bench.alike(rank, f"replay {number} after other work", got, want, inputs)
            before = layer.held()
            for _ in range(_ROUNDS):
                graph.replay()
            grown = layer.held() - before
            counts[f"rank {rank}"] = f"{grown} bytes more after {_ROUNDS} replays"
            if grown:
                bench.find(rank, f"{_ROUNDS} replays", "no memory", f"{grown} bytes", "each replay takes more")
    return bench.evidence("replays take no memory, and do not mind what became of memory that was free", counts)
