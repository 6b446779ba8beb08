"""Attention decode in a graph: queries, sinks, two paged caches, and who sees what in them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from conformance.context import Context
from conformance.stacks.graph_protocol import AttendBuffers, AttendRequest
from references import attention_cache
from suites.attention.bench import Bench, D
from suites.attention.scene import WINDOW
from suites.graph.bench import GraphBench, Padded
from suites.graph.memory import Inputs, Shapes

#: Columns of slots of the compressed entries, and tokens in each cache.
_ENTRIES, _WINDOW_TOKENS, _ENTRY_TOKENS = 64, 192, 192


class AttentionGraphBench(GraphBench):
    """Slots are valid in all columns, and lengths alone say how many count: behind them slots are stale."""

    name = "attention_graph"
    kind: Any = AttendBuffers

    def __init__(self, context: Context):
        super().__init__(context)
        self.attention = Bench(context, "attend")
        can = self.attention.can
        self.fp8 = can.kv == "fp8_ds_mla"
        self.caches = {"window": (WINDOW, _WINDOW_TOKENS, can.window_tokens)} | {
            "entries": (_ENTRIES, _ENTRY_TOKENS, can.c4_tokens)
        }

    @property
    def device(self) -> str:
        return self.attention.can.device

    @property
    def how(self) -> str:
        b = self.attention
        return f"{b.heads} heads a rank, {b.padded} in the kernel, {b.can.kv} cache, on {b.can.device_words}"

    def request(self, rank: int) -> Any:
        can = self.attention.can
        return AttendRequest(rank, self.attention.scale, can.window_tokens, can.c4_tokens)

    def shapes(self, tokens: int) -> Shapes:
        heads, slots = self.attention.padded, getattr(torch, self.attention.can.slots)
        found: Shapes = [((tokens, heads, D), torch.bfloat16), ((heads,), torch.float32)]
        for columns, stored, page in self.caches.values():
            found.append(((-(-stored // page), attention_cache.page_bytes(page, self.fp8)), torch.uint8))
            found += [((tokens, columns), slots), ((tokens,), torch.int32)]
        return [*found, ((tokens, heads, D), torch.bfloat16)]

    def fresh(self, tokens: int, number: int, rank: int) -> Inputs:
        """Other queries, sinks, tokens in the caches, slots and lengths (0 among them). Virtual heads get queries too:
        a kernel does not know them from others."""
        b = self.attention
        asked = _Asked(b.heads, b.padded, b.can.sinks, self.fp8, tuple(self.caches.items()))
        values = _values(asked, b.context.target.seed, tokens, number, rank)
        kinds = dict(zip(self.kind._fields, (dtype for _, dtype in self.shapes(tokens)), strict=True))
        return {name: value.to(self.device, kinds[name]) for name, value in values.items()}

    def moved(self, inputs: Inputs) -> Inputs:
        """The same tokens in other pages, none where it was: a table dealt anew."""
        found = dict(inputs)
        for name, (_, _, page) in self.caches.items():
            data, slots = inputs[name], inputs[f"{name}_slots"].long()
            order = torch.arange(len(data), device=data.device).roll(1)
            found[name] = torch.empty_like(data).index_copy_(0, order, data)
            found[f"{name}_slots"] = (order[slots // page] * page + slots % page).to(inputs[f"{name}_slots"].dtype)
        return found

    def sized(self, inputs: Inputs, window: torch.Tensor, entries: torch.Tensor) -> Inputs:
        """With those lengths (T,)."""
        kind = inputs["window_lengths"]
        return inputs | {"window_lengths": window.to(kind), "entries_lengths": entries.to(kind)}

    def mattering(self, rank: int) -> list[str]:
        return [name for name in super().mattering(rank) if self.attention.can.sinks or name != "sinks"]

    def padded(self, inputs: Inputs, used: int) -> list[Padded]:
        """Once of length 0 with NaN in the queries, once as a larger batch left them, with its queries. Lengths are the
        same in eager: how a kernel splits its work may depend on them."""

        def queries(of: Inputs, value: float) -> Inputs:
            q = of["q"].clone()
            q[used:] = value
            return of | {"q": q}

        def emptied(lengths: torch.Tensor) -> torch.Tensor:
            return torch.where(torch.arange(len(lengths), device=lengths.device) < used, lengths, 0)

        empty = self.sized(inputs, emptied(inputs["window_lengths"]), emptied(inputs["entries_lengths"]))
        return [
            Padded("length 0, NaN", queries(empty, torch.nan), queries(empty, 0.0)),
            Padded("stale", inputs, queries(inputs, 0.0)),
        ]


class _Asked(NamedTuple):
    """What values follow from, beside their number. `caches`: name -> (columns of slots, tokens, tokens of a page)."""

    heads: int
    padded: int
    sinks: bool
    fp8: bool
    caches: tuple[tuple[str, tuple[int, int, int]], ...]


@lru_cache(maxsize=64)
def _values(asked: _Asked, seed: int, tokens: int, number: int, rank: int) -> Inputs:
    """On the CPU; contexts of one process share them."""
    rng = torch.Generator().manual_seed(seed + 100_000 * rank + 1000 * tokens + number)
    q, sinks = torch.zeros(tokens, asked.padded, D), torch.full((asked.padded,), -torch.inf)
    q[:, : asked.heads] = 2 * torch.randn(tokens, asked.heads, D, generator=rng)
    if asked.sinks:
        sinks[: asked.heads] = 1 + 2 * torch.randn(asked.heads, generator=rng)
    found = {"q": q.bfloat16(), "sinks": sinks}
    for name, (columns, stored, page) in asked.caches:
        lengths = torch.randint(0, columns + 1, (tokens,), generator=rng, dtype=torch.int32)
        lengths[-1 - number % tokens] = columns if tokens == 1 else 0
        found |= {
            name: _pages(stored, page, asked.fp8, rng),
            f"{name}_slots": torch.rand(tokens, stored, generator=rng).topk(columns).indices,
            f"{name}_lengths": lengths,
        }
    return found


def _pages(stored: int, page: int, fp8: bool, rng: torch.Generator) -> torch.Tensor:
    """Pages with a token in every place."""
    count = -(-stored // page)
    data = torch.zeros(count, attention_cache.page_bytes(page, fp8), dtype=torch.uint8)
    values = torch.randn(count * page, D, generator=rng)
    attention_cache.put(data, torch.arange(count * page), page, values, fp8)
    return data
