"""Batches that no graph was captured for: padded up to the next one that was, with NaN or stale tokens behind."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.graph.attention import AttentionGraphBench
from suites.graph.bench import GraphBench, MoeGraphBench


@claim("graph.moe.sizes")
def moe_sizes(stack: Stack, context: Context) -> Evidence:
    return _sizes(MoeGraphBench(context))


@claim("graph.attention.sizes")
def attention_sizes(stack: Stack, context: Context) -> Evidence:
    return _sizes(AttentionGraphBench(context))


def _sizes(bench: GraphBench) -> Evidence:
    """Eager computes at the padded size too (its bits may depend on the size), with zeros for pad rows: so a pad row
    that leaks shows twice over."""
    counts = dict[str, object]()
    for rank in bench.context.ranks:
        with bench.layer(rank) as layer:
            for tokens, fewer in zip(bench.sizes, (0, *bench.sizes), strict=False):
                held = bench.held(tokens)
                with bench.captured(layer, held, rank) as graph:
                    for used in sorted({fewer + 1, (fewer + tokens) // 2, tokens - 1, tokens} - {fewer}):
                        if not fewer < used <= tokens:
                            continue
                        for words, given, plain in bench.padded(bench.fresh(tokens, used, rank), used):
                            got, want = bench.replayed(graph, held, given), bench.eager(layer, plain)
                            what = f"{used} tokens in a graph of {tokens}, pad rows {words}"
                            bench.alike(rank, what, got[:used], want[:used], plain)
                        counts[f"{used} in {tokens}"] = "compared at the padded size"
    return bench.evidence("sizes between the captured ones are padded up, and pad rows show nowhere else", counts)
