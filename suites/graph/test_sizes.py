"""Batches that no graph was captured for: padded up to the next one that was, with NaN in the pad rows."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.graph.bench import GraphBench, Inputs


@claim("graph.moe.sizes")
def sizes(stack: Stack, context: Context) -> Evidence:
    """Eager computes at the padded size too (its bits may depend on the size), with zeros for pad rows: so a pad row
    that leaks shows twice over."""
    bench, counts = GraphBench(context), dict[str, object]()
    for rank in context.ranks:
        with bench.layer(rank) as layer:
            for tokens, fewer in zip(bench.sizes, (0, *bench.sizes), strict=False):
                held = bench.held(tokens)
                with bench.captured(layer, held) as graph:
                    for used in sorted({fewer + 1, (fewer + tokens) // 2, tokens - 1, tokens} - {fewer}):
                        if not fewer < used <= tokens:
                            continue
                        given = bench.fresh(tokens, used)
                        want = bench.eager(layer, _padded(given, used, 0.0))
                        got = bench.replayed(graph, held, _padded(given, used, torch.nan))
                        bench.compare(rank, f"{used} tokens in a graph of {tokens}", got[:used], want[:used])
                        counts[f"{used} in {tokens}"] = "compared at the padded size"
    return bench.evidence("sizes between the captured ones are padded up, and pad rows show nowhere else", counts)


def _padded(inputs: Inputs, used: int, value: float) -> Inputs:
    """Rows from `used` on hold `value`; they are routed like others."""
    x = inputs.x.clone()
    x[used:] = value
    return inputs._replace(x=x)
