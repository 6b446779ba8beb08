"""Kernels compiled or configured at their first call: other batch sizes before, other memory, canaries round it, and
what a first call fills for later ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.graph_protocol import Buffers
from conformance.stacks.protocols import MoeLayer, Stack
from conformance.suite import claim
from suites.graph import memory
from suites.graph.bench import MoeGraphBench, moe_inputs, moe_shapes
from suites.graph.memory import Held
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.bits import same
from suites.moe.crowding import Excuses, Tokens

#: From the smallest to the largest and back, then between.
_ORDER = (1, 64, 1, 8, 64)


class _Called:
    """`layer` opens a rank's layer anew, `run` calls it, tactics pinned where the kernel pins any."""

    def __init__(self, context: Context):
        self.bench, self.findings, self.compared = Bench(context), list[Finding](), 0
        self.context, self.excuses = context, Excuses(self.bench)

    @contextmanager
    def layer(self, rank: int) -> Iterator[MoeLayer]:
        limit = self.context.geometry.swiglu_limit
        with self.bench.layer(rank, random_batch.checkpoint(self.context), limit) as layer:
            yield layer

    def held(self, tokens: int, number: int = 0) -> Held:
        held = memory.cut(Buffers, moe_shapes(self.bench, tokens), self.bench.device)
        held.put(moe_inputs(self.bench, tokens, number))
        return held

    def run(self, layer: MoeLayer, held: Held) -> torch.Tensor:
        """(M, H): the output, which stays in `held` too."""
        b = held.buffers
        layer.run(b.x, b.ids, b.weights, b.out, 0 if self.bench.can.pins_tactics and layer.tactics() else None)
        out: torch.Tensor = b.out.clone()
        return out

    def alone(self, rank: int, tokens: int) -> torch.Tensor:
        """What a fresh layer answers at its first call."""
        with self.layer(rank) as layer:
            return self.run(layer, self.held(tokens))

    def compare(
        self, rank: int, where: str, got: torch.Tensor, want: torch.Tensor, meaning: str, number: int = 0
    ) -> None:
        """`number`: of the inputs, as in `held`. Tokens that crowd are judged by the reference in the end."""
        if self.bench.can.tile_tokens:
            given = Tokens(**moe_inputs(self.bench, len(got), number))
            want = self.excuses.due(rank, where, got, want, given)
        wrong = ~same(got, want)
        self.compared += wrong.numel()
        if count := int(wrong.sum()):
            token, column = divmod(int(wrong.flatten().int().argmax()), wrong.shape[1])
            value, due = float(got[token, column]), float(want[token, column])
            self.find(rank, f"{where}, token {token}, output {column}", f"{due:.8g}", f"{value:.8g}", meaning, count)

    def find(self, rank: int, where: str, expected: str, got: str, meaning: str, count: int) -> None:
        words = f"{meaning} ({count} in all)"
        self.findings.append(Finding(f"rank {rank}, {where}", expected, got, words, rank=rank))

    def evidence(self, right: str) -> Evidence:
        findings, notes = self.excuses.judged()
        self.findings += findings
        head = self.findings[0] if self.findings else None
        return Evidence(
            ok=head is None and self.compared > 0,
            summary=right if head is None else f"{head.where}: {head.got}, {head.expected} due; {head.meaning}",
            expected=f"{self.compared} values, bit for bit",
            findings=self.findings[:12],
            notes=notes,
            method=self.bench.words,
            seed=self.context.target.seed,
        )


@claim("graph.jit.shapes")
def shapes(stack: Stack, context: Context) -> Evidence:
    called = _Called(context)
    for rank in context.ranks:
        due = {tokens: called.alone(rank, tokens) for tokens in sorted(set(_ORDER), reverse=True)}
        with called.layer(rank) as layer:
            for number, tokens in enumerate(_ORDER):
                got = called.run(layer, called.held(tokens))
                before = ", ".join(map(str, _ORDER[:number])) or "nothing"
                words = "what an earlier batch size left decides this one"
                called.compare(rank, f"M={tokens} after {before}", got, due[tokens], words)
    order = ", ".join(map(str, _ORDER))
    return called.evidence(f"batches of {order} in one layer give what a fresh layer gives at its first call")


@claim("graph.jit.memory")
def second(stack: Stack, context: Context) -> Evidence:
    """The same call in other memory, when the first call's holds NaN and routes to nowhere; canaries round both."""
    called, tokens = _Called(context), max(_ORDER)
    for rank in context.ranks:
        with called.layer(rank) as layer:
            first = called.held(tokens)
            due = called.run(layer, first)
            _look(called, rank, "the first call", first, 0)
            first.buffers.x.fill_(torch.nan)
            first.buffers.weights.fill_(torch.nan)
            other = called.held(tokens)
            got = called.run(layer, other)
            called.compare(rank, "the second allocation", got, due, "the first call's memory is read")
            _look(called, rank, "the second call", other, 0)
            if not bool(first.buffers.x.isnan().all()) or not bool(same(first.buffers.out, due).all()):
                called.find(rank, "the second call", "the first call's memory as it was", "changed", "written", 1)
            later = called.held(tokens, 1)
            called.run(layer, later)
            if bool(same(later.buffers.out, due).all()):
                called.find(rank, "other tokens in new memory", "another output", "the first one's", "stale", 1)
            other.put(moe_inputs(called.bench, tokens, 1))
            words = "something is kept by the address of an input"
            got, due = called.run(layer, other), later.buffers.out
            called.compare(rank, "other tokens in the same memory", got, due, words, number=1)
    return called.evidence("a second allocation gives the same bits, and neither call writes outside of its output")


def _look(called: _Called, rank: int, what: str, held: Held, number: int) -> None:
    called.compared += sum(gap.numel() for gap in held.gaps)
    if spoilt := held.spoilt():
        called.find(rank, what, "no byte outside of the buffers", "written", "memory of others is clobbered", spoilt)
    for name in held.changed(moe_inputs(called.bench, len(held.buffers.x), number)):
        called.find(rank, f"{what}, {name}", "an input as it was", "changed", "the caller's input is overwritten", 1)


@claim("graph.jit.tables")
def tables(stack: Stack, context: Context) -> Evidence:
    """A captured call only notes what it would fill: it is there after a replay, and the first graph's comes last."""
    bench = MoeGraphBench(context)
    few, many = bench.sizes[0], bench.sizes[-1]
    for rank in context.ranks:
        small, large = bench.fresh(few, 0, rank), bench.fresh(many, 0, rank)
        with bench.layer(rank) as fresh:
            due = bench.eager(fresh, small), bench.eager(fresh, large)
        words = "what calls look up was filled under capture: it is there when that graph is replayed"
        held, other = bench.held(many), bench.held(few)
        with bench.layer(rank) as layer, bench.captured(layer, held, rank) as first:
            bench.compare(rank, f"M={few} in eager after a capture", bench.eager(layer, small), due[0], words)
            with bench.captured(layer, other, rank) as second:
                got = bench.replayed(second, other, small)
                bench.compare(rank, f"M={few} in a second graph, before the first is replayed", got, due[0], words)
            got = bench.replayed(first, held, large)
            bench.alike(rank, f"M={many} in the first graph", got, due[1], large, words)
    return bench.evidence("eager and a second graph are right before the first graph is ever replayed")
