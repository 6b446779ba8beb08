"""MoE and all-reduce captured in one CUDA graph: a rank function for processes that have a GPU each."""

from __future__ import annotations

from typing import Any

import torch

from conformance.errors import NotSupported
from conformance.world.member import Member
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.random_batch import Batch
from suites.moe.test_repeat import same

_WARM_UPS = 3


def replayed(member: Member, tokens: int, replays: int) -> dict[str, Any]:
    """Capture a batch of `tokens`, replay it on `replays` fresh inputs (weights of the experts stay), and compare each
    with the same call in eager mode. `differ`: replays of which any bit differs; `frozen`: outputs like the one before.

    The graph is freed before this returns: a process group cannot be ended while a graph holds its communicator.
    Raises NotSupported without CUDA.
    """
    bench = Bench(member.context)
    if not bench.device.startswith("cuda"):
        raise NotSupported(f"no CUDA graph can be captured on {bench.device}")
    limit = member.context.geometry.swiglu_limit
    with bench.layer(member.rank, random_batch.checkpoint(member.context), limit) as layer:
        held = _fresh(bench, tokens, 0)
        out = torch.empty(tokens, bench.hidden, dtype=getattr(torch, bench.can.output), device=bench.device)

        def step(batch: Batch, into: torch.Tensor, words: str) -> None:
            into.fill_(torch.nan)
            layer.run(*batch, into)
            member.all_reduce(into, words)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                step(held, out, "the warm-up")
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                step(held, out, "the capture")
            differ, frozen, before = 0, 0, out.clone()
            for number in range(1, replays + 1):
                fresh = _fresh(bench, tokens, number)
                eager = torch.empty_like(out)
                step(fresh, eager, f"eager call {number}")
                for static, new in zip(held, fresh, strict=True):
                    static.copy_(new)
                member.stage(f"replay {number}")
                graph.replay()
                torch.cuda.synchronize()
                differ += not bool(same(out, eager).all())
                frozen += bool(same(out, before).all())
                before = out.clone()
        finally:
            torch.cuda.synchronize()
            graph.reset()
            del graph
    return {"replays": replays, "differ": differ, "frozen": frozen}


def _fresh(bench: Bench, tokens: int, number: int) -> Batch:
    """Other tokens, routes and weights for every number."""
    rng = torch.Generator().manual_seed(bench.context.target.seed + number)
    x = (torch.randn(tokens, bench.hidden, generator=rng) / bench.hidden**0.5 * 32).bfloat16()
    ids = torch.rand(tokens, bench.experts, generator=rng).topk(bench.slots).indices.int()
    weights = torch.rand(tokens, bench.slots, generator=rng)
    return Batch(x.to(bench.device), ids.to(bench.device), weights.to(bench.device))
