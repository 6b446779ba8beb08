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
from suites.graph import memory
from suites.graph.memory import Held, Inputs, Shapes
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.bits import same
from suites.moe.crowding import Excuses, Tokens, excused

_SPREAD = 32.0  # as in the MoE layer's random batches
_MOST = 12
#: How far two results of one kernel on the same input may be apart where the order of its sums may change and no
#: reference is at hand. A row, by its norm: Marlin is 4.4e-3 from FP64, and must be nearer to itself. An output: a last
#: bit or two of its own, or of the slots that it is summed of, which are as large as the row's root mean square.
_ROW, _OUTPUT, _SLOTS = 2.0**-7, 2.0**-7, 2.0**-5


class Padded(NamedTuple):
    """A batch that fills a graph in part: what lies in the pad rows at a replay, and in their place in eager."""

    words: str
    replayed: Inputs
    eager: Inputs


class GraphBench(ABC):
    """`runner` captures, on `device`; `how` says what was measured. `tile_tokens`: as its MoE kernel declares it."""

    tile_tokens = 0

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
        #: Rank -> outputs of tokens that crowd, in other bits than eager's; and the farthest row judged by its norm.
        self.other_bits: dict[int, int] = {}
        self.farthest = 0.0

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

    def alike(
        self,
        rank: int,
        what: str,
        got: torch.Tensor,
        want: torch.Tensor,
        inputs: Inputs,
        meaning: str = "",
        summed: bool = False,
    ) -> bool:
        """Two results on the same inputs, or on their first rows: bit for bit, whether they are. Tokens that crowd may
        be in other bits, if those are as good. `summed`: outputs are sums over ranks."""
        if self.tile_tokens:
            other = excused(got, want, inputs["ids"], self.tile_tokens)
            if count := int(other.sum()):
                self.other_bits[rank] = self.other_bits.get(rank, 0) + count
                if summed:
                    self.near(rank, what, got, want, other)
                else:
                    self.excuse(rank, what, got, want, inputs, other)
                want = torch.where(other, got, want)
        return self.compare(rank, what, got, want, meaning)

    def excuse(
        self, rank: int, what: str, got: torch.Tensor, want: torch.Tensor, inputs: Inputs, other: torch.Tensor
    ) -> None:
        """Judge outputs in `other` bits by themselves: with the reference, where there is one."""
        self.near(rank, what, got, want, other)

    def near(self, rank: int, what: str, got: torch.Tensor, want: torch.Tensor, other: torch.Tensor) -> None:
        rows = other.any(1).nonzero().flatten()
        a, b = got[rows].double(), want[rows].double()
        norm = b.norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
        apart, allowed = (a - b).norm(dim=1) / norm, _OUTPUT * b.abs() + _SLOTS * norm[:, None] / b.shape[1] ** 0.5
        self.farthest = max(self.farthest, float(apart.max()))
        for row, off, far in zip(
            rows.tolist(), apart.tolist(), ((a - b).abs() / allowed).amax(1).tolist(), strict=True
        ):
            where, meaning = f"{what}, token {row}", "tokens that crowd may differ in last bits, and not in more"
            if not off <= _ROW:
                self.find(rank, where, f"within {_ROW:.3g} of the norm of eager's", f"{off:.3g}", meaning)
            elif not far <= 1:
                self.find(rank, where, "each output within a last bit or two", f"one {far:.3g} times that", meaning)

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
        if self.other_bits:
            right += f"; {sum(self.other_bits.values())} outputs of tokens that crowd are in other bits, and as good"
        if self.farthest:
            far = f"by {self.farthest:.2g} of a row's norm at most, {_ROW:.2g} allowed"
            notes = [*(notes or []), f"tokens that crowd are apart {far}"]
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
        self.tile_tokens = self.bench.can.tile_tokens
        self._excuses = Excuses(self.bench)

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

    def excuse(
        self, rank: int, what: str, got: torch.Tensor, want: torch.Tensor, inputs: Inputs, other: torch.Tensor
    ) -> None:
        self._excuses.keep(rank, what, got, want, Tokens(*(inputs[name] for name in Tokens._fields)), other)

    def evidence(
        self, right: str, measured: dict[str, object] | None = None, notes: list[str] | None = None
    ) -> Evidence:
        """Tokens that were excused are judged here."""
        findings, told = self._excuses.judged()
        self.findings += findings
        self.compared += self._excuses.compared
        return super().evidence(right, measured, [*(notes or []), *told])


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
