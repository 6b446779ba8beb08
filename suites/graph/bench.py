"""What every graph check does: fresh inputs, poison, a graph beside eager. Each subject has a bench of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.graph_protocol import Buffers, Captured, GraphedLayer
from references.bound import deviations
from suites.graph import memory
from suites.graph.memory import Held, Inputs, Shapes
from suites.moe import due, random_batch
from suites.moe.bench import Bench
from suites.moe.test_repeat import same

_SPREAD = 32.0  # as in the MoE layer's random batches
_MOST = 12


class Padded(NamedTuple):
    """A batch that fills a graph in part: what lies in the pad rows at a replay, and in their place in eager."""

    words: str
    replayed: Inputs
    eager: Inputs


class GraphBench(ABC):
    """`runner` captures, on `device`; `how` says what was measured."""

    #: The stack's method that opens the runner, and the NamedTuple of its buffers.
    name = "graph"
    kind: Any = Buffers

    def __init__(self, context: Context):
        self.context, self.runner = context, context.graphs(self.name)
        self.sizes: tuple[int, ...] = self.runner.sizes
        if context.target.nightly and hasattr(self.runner, "every_size"):
            self.sizes = context.once(f"every size of {self.name}", self.runner.every_size)
        self.findings: list[Finding] = []
        self.compared = 0

    @property
    @abstractmethod
    def device(self) -> str: ...

    @property
    @abstractmethod
    def how(self) -> str: ...

    @abstractmethod
    def request(self, rank: int) -> Any:
        """What the runner is opened with."""

    @abstractmethod
    def shapes(self, tokens: int) -> Shapes: ...

    @abstractmethod
    def fresh(self, tokens: int, number: int, rank: int) -> Inputs:
        """Other values for every number, in the order of the buffers' fields; `out` is none of them."""

    @abstractmethod
    def padded(self, inputs: Inputs, used: int) -> list[Padded]:
        """Ways in which rows from `used` on hold no token."""

    def mattering(self, rank: int) -> list[str]:
        """Inputs that must move the rank's output."""
        return [name for name in self.kind._fields if name != "out"]

    @contextmanager
    def layer(self, rank: int) -> Iterator[GraphedLayer]:
        layer: GraphedLayer = self.runner.open(self.request(rank))
        try:
            yield layer
        finally:
            layer.close()

    def held(self, tokens: int) -> Held:
        return memory.cut(self.kind, self.shapes(tokens), self.device)

    @contextmanager
    def captured(self, layer: GraphedLayer, held: Held, rank: int, pool: object = None) -> Iterator[Captured]:
        """A graph over those buffers, captured on inputs of its own."""
        held.put(self.fresh(len(held.buffers.out), -1, rank))
        layer.warm_up(held.buffers)
        graph = layer.capture(held.buffers, pool)
        try:
            yield graph
        finally:
            graph.close()

    def eager(self, layer: GraphedLayer, inputs: Inputs) -> torch.Tensor:
        """The same call without a graph, in memory of its own."""
        held = self.held(_tokens(inputs))
        held.put(inputs)
        layer.eager(held.buffers)
        out: torch.Tensor = held.buffers.out.clone()
        return out

    def replayed(self, graph: Captured, held: Held, inputs: Inputs) -> torch.Tensor:
        held.put(inputs)
        graph.replay()
        out: torch.Tensor = held.buffers.out[: _tokens(inputs)].clone()
        return out

    def compare(self, rank: int, what: str, got: torch.Tensor, want: torch.Tensor, meaning: str = "") -> bool:
        """Bit for bit; whether they are alike."""
        got, want = got.flatten(1), want.flatten(1)
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
            method=f"{self.runner.words}; {self.how}",
            seed=self.context.target.seed,
        )


def _tokens(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())))


class MoeGraphBench(GraphBench):
    """x (M, H) bfloat16, ids (M, k) int32, weights (M, k) float32."""

    def __init__(self, context: Context):
        super().__init__(context)
        self.bench = Bench(context)

    @property
    def device(self) -> str:
        return self.bench.device

    @property
    def how(self) -> str:
        return self.bench.words

    def request(self, rank: int) -> Any:
        """With random weights."""
        limit = self.context.geometry.swiglu_limit
        return self.bench.request(rank, random_batch.checkpoint(self.context), limit)

    def shapes(self, tokens: int) -> Shapes:
        return moe_shapes(self.bench, tokens)

    def fresh(self, tokens: int, number: int, rank: int = 0) -> Inputs:
        """All ranks get the same."""
        return moe_inputs(self.bench, tokens, number)

    def padded(self, inputs: Inputs, used: int) -> list[Padded]:
        """NaN in the pad rows, which are routed like others; in eager zeros."""

        def filled(value: float) -> Inputs:
            x = inputs["x"].clone()
            x[used:] = value
            return inputs | {"x": x}

        return [Padded("NaN", filled(torch.nan), filled(0.0))]

    def within_bound(self, rank: int, what: str, got: torch.Tensor, inputs: Inputs) -> float:
        """Against the FP64 reference: for a kernel that may add in another order. The largest error over its bound."""
        b, context = self.bench, self.context
        limit, own = context.geometry.swiglu_limit, b.own(rank)
        experts = due.experts(random_batch.checkpoint(context), context.geometry, own, b.device)
        allowed = deviations(got.numel(), random_batch.ALARM)
        tokens = inputs["x"], inputs["ids"], inputs["weights"]
        right = random_batch.reference(b, *tokens, experts, len(own), limit, allowed)
        ratio = random_batch.off(got, right, allowed)
        self.compared += ratio.numel()
        worst = random_batch.highest(ratio)
        if worst > 1:
            token, column = divmod(int(ratio.argmax()), ratio.shape[1])
            where, expected = f"{what}, token {token}, output {column}", f"{float(right.value[token, column]):g}"
            self.find(rank, where, expected, f"{float(got[token, column]):g}", f"{worst:.3g} times the bound")
        return worst


def moe_shapes(b: Bench, tokens: int) -> Shapes:
    return [
        ((tokens, b.hidden), torch.bfloat16),
        ((tokens, b.slots), torch.int32),
        ((tokens, b.slots), torch.float32),
        ((tokens, b.hidden), getattr(torch, b.can.output)),
    ]


def moe_inputs(b: Bench, tokens: int, number: int) -> Inputs:
    """Other tokens, routes and weights for every number."""
    rng = torch.Generator().manual_seed(b.context.target.seed + 1000 * tokens + number)
    x = (torch.randn(tokens, b.hidden, generator=rng) * (_SPREAD / b.hidden**0.5)).bfloat16()
    return {"x": x.to(b.device)} | routed(b, tokens, rng)


def routed(b: Bench, tokens: int, rng: torch.Generator) -> Inputs:
    """Each token to experts of its own, with weights of their own."""
    ids = torch.rand(tokens, b.experts, generator=rng).topk(b.slots).indices.int()
    weights = torch.rand(tokens, b.slots, generator=rng)
    return {"ids": ids.to(b.device), "weights": weights.to(b.device)}
