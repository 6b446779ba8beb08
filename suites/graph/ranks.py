"""What runs on each rank, in its own process: MoE and all-reduce in one graph. Simple types back."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from conformance.stacks.graph_protocol import Buffers, GraphedLayer, Step
from conformance.world.member import Member
from suites.graph.bench import MoeGraphBench
from suites.moe.bits import same


def replayed(member: Member, replays: int) -> dict[str, Any]:
    """Capture each of the stack's batch sizes with the all-reduce behind it; replay on `replays` fresh inputs, and
    compare each with the same calls in eager.

    `sizes`: batch size -> replays that differ; `compared`: values; `other_bits`, `farthest`: of tokens that crowd;
    `findings`. Graphs are freed before this returns: a process group cannot be ended while one holds its communicator.
    """
    bench = MoeGraphBench(member.context)
    differ = dict[int, int]()
    with bench.layer(member.rank) as layer:
        _join(layer, member)
        for tokens in bench.sizes:
            held, differ[tokens], before = bench.held(tokens), 0, torch.empty(0)
            with bench.captured(layer, held, member.rank) as graph:
                for number in range(replays):
                    inputs, words = bench.fresh(tokens, number), f"M={tokens}, replay {number}"
                    got, want = bench.replayed(graph, held, inputs), bench.eager(layer, inputs)
                    differ[tokens] += not bench.alike(member.rank, words, got, want, inputs, summed=True)
                    if number and bool(same(got, before).all()):
                        bench.find(member.rank, words, "other outputs", "those of the last replay", "inputs are frozen")
                    before = got
    return {
        "sizes": differ,
        "compared": bench.compared,
        "other_bits": bench.other_bits.get(member.rank, 0),
        "farthest": bench.farthest,
        "findings": msgspec.to_builtins(bench.findings),
    }


def _join(layer: GraphedLayer, member: Member) -> None:
    """Let the layer's call end in the all-reduce of its output."""

    def joined(alone: Step) -> Step:
        def step(buffers: Buffers) -> None:
            alone(buffers)
            member.all_reduce(buffers.out, f"the all-reduce of M={len(buffers.out)}")

        return step

    layer.change(joined)
