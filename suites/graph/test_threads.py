"""Two threads that make the first call of a new shape at the same time, on a MoE layer each."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch

from conformance.context import Context
from conformance.errors import NotSupported, StackTimeout
from conformance.result import Evidence, Finding
from conformance.stacks.graph_protocol import Buffers
from conformance.stacks.protocols import MoeLayer, Stack
from conformance.suite import claim
from references.bound import deviations
from suites.graph import memory
from suites.graph.bench import moe_inputs, moe_shapes
from suites.graph.memory import Held
from suites.moe import due, random_batch
from suites.moe.bench import Bench
from suites.moe.bits import same
from suites.moe.crowding import crowded

#: Batch sizes that no other check uses: what is built by shape is built in these calls.
_SIZES = (11, 37)
_THREADS = 2
#: Seconds that a thread has for its call, compilation included.
_LIMIT = 300.0


@claim("graph.jit.threads")
def threads(stack: Stack, context: Context) -> Evidence:
    called = _Threads(context)
    if not called.bench.can.threads:
        raise NotSupported("the kernel does not declare that two threads may call it at once (`threads`)")
    for rank in context.ranks:
        with ExitStack() as opened:
            layers = [opened.enter_context(called.layer(rank)) for _ in range(_THREADS)]
            for tokens in _SIZES:
                held = [called.held(tokens, number) for number in range(_THREADS)]
                called.at_once(layers, held)
                for number, (layer, own) in enumerate(zip(layers, held, strict=True)):
                    called.compare(rank, number, layer, own)
    return called.evidence()


class _Threads:
    def __init__(self, context: Context):
        self.context, self.bench = context, Bench(context)
        self.checkpoint, self.limit = random_batch.checkpoint(context), context.geometry.swiglu_limit
        self.findings, self.compared = list[Finding](), 0

    def layer(self, rank: int) -> AbstractContextManager[MoeLayer]:
        return self.bench.layer(rank, self.checkpoint, self.limit)

    def held(self, tokens: int, number: int) -> Held:
        """Other tokens, routes and weights for each thread."""
        held = memory.cut(Buffers, moe_shapes(self.bench, tokens), self.bench.device)
        held.put(moe_inputs(self.bench, tokens, number))
        return held

    def call(self, layer: MoeLayer, held: Held) -> None:
        b = held.buffers
        layer.run(b.x, b.ids, b.weights, b.out, 0 if self.bench.can.pins_tactics and layer.tactics() else None)

    def at_once(self, layers: list[MoeLayer], held: list[Held]) -> None:
        """Each in a thread of its own, on a GPU in a stream of its own; all start when all are there. Raises what a
        call raises, and StackTimeout where one does not come back."""
        barrier, raised = threading.Barrier(len(layers)), list[BaseException]()
        cuda = self.bench.device.startswith("cuda")
        if cuda:
            torch.cuda.synchronize()

        def one(layer: MoeLayer, own: Held) -> None:
            try:
                stream = torch.cuda.Stream() if cuda else None
                barrier.wait(_LIMIT)
                with torch.cuda.stream(stream) if stream else nullcontext():
                    self.call(layer, own)
                if stream:
                    stream.synchronize()
            except BaseException as error:
                raised.append(error)

        calls = [threading.Thread(target=one, args=pair, daemon=True) for pair in zip(layers, held, strict=True)]
        for call in calls:
            call.start()
        for call in calls:
            call.join(_LIMIT)
        if raised:
            raise raised[0]
        if stuck := sum(call.is_alive() for call in calls):
            words = f"{stuck} of {len(calls)} threads that call at once do not come back in {_LIMIT:g} s"
            raise StackTimeout(f"M={len(held[0].buffers.x)}: {words}: look for a lock that each waits for")

    def compare(self, rank: int, number: int, layer: MoeLayer, held: Held) -> None:
        """With the same call in turn, bit for bit but for tokens that crowd; and, since what two threads have built
        wrong may be wrong in every later call too, with the FP64 reference, within its bound."""
        tokens, got = len(held.buffers.x), held.buffers.out
        alone = self.held(tokens, number)
        self.call(layer, alone)
        turn = alone.buffers.out
        steady = ~crowded(alone.buffers.ids, self.bench.can.tile_tokens)[:, None]
        self.look(rank, tokens, number, got, turn, ~same(got, turn) & steady, "alone")
        b, own, allowed = self.bench, self.bench.own(rank), deviations(got.numel(), random_batch.ALARM)
        experts = due.experts(self.checkpoint, self.context.geometry, own, b.device)
        right = random_batch.reference(
            b, alone.buffers.x, alone.buffers.ids, alone.buffers.weights, experts, len(own), self.limit, allowed
        )
        self.look(rank, tokens, number, got, right.value, random_batch.off(got, right, allowed) > 1, "in FP64")

    def look(
        self, rank: int, tokens: int, number: int, got: torch.Tensor, due: torch.Tensor, wrong: torch.Tensor, how: str
    ) -> None:
        self.compared += wrong.numel()
        if count := int(wrong.sum()):
            token, column = divmod(int(wrong.flatten().int().argmax()), wrong.shape[1])
            where = f"rank {rank}, M={tokens}, thread {number}, token {token}, output {column}"
            words = f"calls at the same time share what is built, or worked in, by shape ({count} in all)"
            value = f"{float(due[token, column]):.8g} {how}"
            self.findings.append(Finding(where, value, f"{float(got[token, column]):.8g}", words, rank=rank))

    def evidence(self) -> Evidence:
        head = self.findings[0] if self.findings else None
        right = f"{_THREADS} threads make the first calls of a shape at once, and each gets its own result"
        return Evidence(
            ok=head is None and self.compared > 0,
            summary=right if head is None else f"{head.where}: {head.got}, {head.expected} due; {head.meaning}",
            expected=f"{self.compared} values: bits of calls in turn, and the FP64 reference within its bound",
            findings=self.findings[:12],
            method=self.bench.words + (f"; {_THREADS} streams" if self.bench.device.startswith("cuda") else ""),
            seed=self.context.target.seed,
        )
