"""What every graph check does: buffers with canaries round them, fresh inputs, poison, a graph beside eager."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.graph_protocol import Buffers, Captured, GraphedLayer
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.test_repeat import same

_CANARY = 0xA5
_GAP = 256
_SPREAD = 32.0  # as in the MoE layer's random batches
_MOST = 12


class Inputs(NamedTuple):
    """Values for the buffers: x (M, H) bfloat16, ids (M, k) int32, weights (M, k) float32."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


class Held(NamedTuple):
    """Buffers cut from one piece of memory whose gaps hold canaries."""

    buffers: Buffers
    gaps: list[torch.Tensor]

    def spoilt(self) -> int:
        """Bytes of the gaps that were written."""
        return sum(int((gap != _CANARY).sum()) for gap in self.gaps)

    def put(self, inputs: Inputs) -> None:
        """New inputs in the same memory, and NaN where the output goes."""
        for buffer, value in zip(self.buffers, inputs, strict=False):
            buffer[: len(value)].copy_(value)
        self.buffers.out.fill_(torch.nan)


class GraphBench:
    def __init__(self, context: Context):
        self.context, self.bench, self.runner = context, Bench(context), context.graphs
        self.findings: list[Finding] = []
        self.compared = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.runner.sizes

    @property
    def words(self) -> str:
        return f"{self.runner.words}; {self.bench.words}"

    @contextmanager
    def layer(self, rank: int) -> Iterator[GraphedLayer]:
        """A rank's layer with random weights."""
        limit = self.context.geometry.swiglu_limit
        layer = self.runner.open(self.bench.request(rank, random_batch.checkpoint(self.context), limit))
        try:
            yield layer
        finally:
            layer.close()

    def held(self, tokens: int) -> Held:
        b = self.bench
        output = getattr(torch, b.can.output)
        shapes = (
            ((tokens, b.hidden), torch.bfloat16),
            ((tokens, b.slots), torch.int32),
            ((tokens, b.slots), torch.float32),
            ((tokens, b.hidden), output),
        )
        sizes = [rows * cols * dtype.itemsize for (rows, cols), dtype in shapes]
        steps = [_GAP + -(-size // _GAP) * _GAP for size in sizes]
        flat = torch.full((sum(steps) + _GAP,), _CANARY, dtype=torch.uint8, device=b.device)
        at, cut, gaps = 0, [], []
        for (shape, dtype), size, step in zip(shapes, sizes, steps, strict=True):
            gaps.append(flat[at : at + _GAP])
            cut.append(flat[at + _GAP : at + _GAP + size].view(dtype).view(shape))
            gaps.append(flat[at + _GAP + size : at + step])
            at += step
        gaps.append(flat[at:])
        return Held(Buffers(*cut), gaps)

    def fresh(self, tokens: int, number: int) -> Inputs:
        """Other tokens, routes and weights for every number."""
        b = self.bench
        rng = torch.Generator().manual_seed(self.context.target.seed + 1000 * tokens + number)
        x = (torch.randn(tokens, b.hidden, generator=rng) * (_SPREAD / b.hidden**0.5)).bfloat16()
        ids = torch.rand(tokens, b.experts, generator=rng).topk(b.slots).indices.int()
        weights = torch.rand(tokens, b.slots, generator=rng)
        return Inputs(x.to(b.device), ids.to(b.device), weights.to(b.device))

    @contextmanager
    def captured(self, layer: GraphedLayer, held: Held, pool: object = None) -> Iterator[Captured]:
        """A graph over those buffers, captured on inputs of its own."""
        held.put(self.fresh(len(held.buffers.x), -1))
        layer.warm_up(held.buffers)
        graph = layer.capture(held.buffers, pool)
        try:
            yield graph
        finally:
            graph.close()

    def eager(self, layer: GraphedLayer, inputs: Inputs) -> torch.Tensor:
        """The same call without a graph, in memory of its own."""
        held = self.held(len(inputs.x))
        held.put(inputs)
        layer.eager(held.buffers)
        return held.buffers.out.clone()

    def replayed(self, graph: Captured, held: Held, inputs: Inputs) -> torch.Tensor:
        held.put(inputs)
        graph.replay()
        return held.buffers.out[: len(inputs.x)].clone()

    def compare(self, rank: int, what: str, got: torch.Tensor, want: torch.Tensor, meaning: str = "") -> bool:
        """Bit for bit; whether they are alike."""
        wrong = ~same(got, want)
        self.compared += wrong.numel()
        count = int(wrong.sum())
        if count:
            token, column = divmod(int(wrong.flatten().int().argmax()), wrong.shape[1])
            value = float(got[token, column])
            self.find(
                rank,
                f"{what}, token {token}, output {column}",
                f"{float(want[token, column]):.8g}, as in eager",
                "NaN: never written, or a NaN" if value != value else f"{value:.8g}",
                meaning or f"{count} of {wrong.numel()} outputs differ",
            )
        return not count

    def find(self, rank: int, where: str, expected: str, got: str, meaning: str) -> None:
        self.findings.append(Finding(f"rank {rank}, {where}", expected, got, meaning, rank=rank))

    def evidence(
        self, right: str, measured: dict[str, object] | None = None, notes: list[str] | None = None
    ) -> Evidence:
        first = self.findings[0] if self.findings else None
        return Evidence(
            ok=first is None and self.compared > 0,
            summary=right if first is None else f"{first.where}: {first.got}, {first.expected} due; {first.meaning}",
            expected=f"{self.compared} values, bit for bit",
            measured=measured or {},
            findings=self.findings[:_MOST],
            notes=notes or [],
            method=self.words,
            seed=self.context.target.seed,
        )
