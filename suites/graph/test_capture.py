"""Capture itself: that it is possible, that it needs no host, and that nobody else's memory is touched."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.graph.attention import AttentionGraphBench
from suites.graph.bench import GraphBench, MoeGraphBench
from suites.graph.memory import Held, Inputs


@claim("graph.moe.capture")
def moe_capture(stack: Stack, context: Context) -> Evidence:
    return _capture(MoeGraphBench(context))


@claim("graph.attention.capture")
def attention_capture(stack: Stack, context: Context) -> Evidence:
    return _capture(AttentionGraphBench(context))


@claim("graph.moe.canaries")
def moe_canaries(stack: Stack, context: Context) -> Evidence:
    return _canaries(MoeGraphBench(context))


@claim("graph.attention.canaries")
def attention_canaries(stack: Stack, context: Context) -> Evidence:
    return _canaries(AttentionGraphBench(context))


def _capture(bench: GraphBench) -> Evidence:
    """What cannot be captured at all is refused by the stack's runner, with its words."""
    for rank in bench.context.ranks:
        with bench.layer(rank) as layer:
            for tokens in bench.sizes:
                held = bench.held(tokens)
                with bench.captured(layer, held, rank) as graph:
                    for incident in graph.incidents:
                        meaning = "a GPU's graph would keep what Python saw at capture, or could not be captured"
                        bench.find(rank, f"capture of {tokens} tokens", "work for the device alone", incident, meaning)
                    got = bench.replayed(graph, held, bench.fresh(tokens, 0, rank))
                bench.compared += got.numel()
    sizes = ", ".join(map(str, bench.sizes))
    return bench.evidence(f"captured at {sizes} tokens on every rank, without the host", {"sizes": list(bench.sizes)})


def _canaries(bench: GraphBench) -> Evidence:
    for rank in bench.context.ranks:
        with bench.layer(rank) as layer:
            for tokens in bench.sizes:
                held, inputs = bench.held(tokens), bench.fresh(tokens, 0, rank)
                held.put(inputs)
                layer.warm_up(held.buffers)
                _look(bench, rank, f"warm-up of {tokens} tokens", held, inputs)
                held.put(inputs)
                graph = layer.capture(held.buffers)
                _look(bench, rank, f"capture of {tokens} tokens", held, inputs)
                for number in range(3):
                    inputs = bench.fresh(tokens, number, rank)
                    bench.replayed(graph, held, inputs)
                    _look(bench, rank, f"replay {number} of {tokens} tokens", held, inputs)
                graph.close()
    return bench.evidence("the output alone is written; inputs and the memory round the buffers stay as they were")


def _look(bench: GraphBench, rank: int, what: str, held: Held, inputs: Inputs) -> None:
    bench.compared += sum(gap.numel() for gap in held.gaps)
    if spoilt := held.spoilt():
        bench.find(rank, what, "no byte outside of the buffers", f"{spoilt} written", "memory of others is clobbered")
    for name in held.changed(inputs):
        bench.find(rank, f"{what}, {name}", "an input as it was", "changed", "the caller's input is overwritten")
