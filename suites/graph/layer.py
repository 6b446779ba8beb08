"""A decoder layer's own kernels in one graph: attention decode, its output projection, the routed experts."""

from __future__ import annotations

from typing import Any

import torch

from conformance.context import Context
from conformance.stacks.graph_protocol import LayerBuffers, LayerRequest
from suites.attention import output_weights
from suites.graph.attention import AttentionGraphBench
from suites.graph.bench import routed
from suites.graph.memory import Inputs, Shapes
from suites.moe import random_batch
from suites.moe.bench import Bench


class LayerGraphBench(AttentionGraphBench):
    """One rank's part, not reduced: what attention's projection gives is what the experts get."""

    name = "layer_graph"
    kind: Any = LayerBuffers

    def __init__(self, context: Context):
        super().__init__(context)
        self.moe = Bench(context)
        self.tile_tokens = self.moe.can.tile_tokens

    @property
    def how(self) -> str:
        return f"{super().how}; {self.moe.words}"

    def request(self, rank: int) -> Any:
        b = self.attention
        output = output_weights.request(b, output_weights.of_rank(b, rank, output_weights.random))
        limit = self.context.geometry.swiglu_limit
        moe = self.moe.request(rank, random_batch.checkpoint(self.context), limit)
        return LayerRequest(rank, super().request(rank), output, moe)

    def shapes(self, tokens: int) -> Shapes:
        slots = tokens, self.moe.slots
        return [
            *super().shapes(tokens)[:-1],
            ((tokens,), torch.int64),
            (slots, torch.int32),
            (slots, torch.float32),
            ((tokens, self.moe.hidden), torch.bfloat16),
        ]

    def fresh(self, tokens: int, number: int, rank: int) -> Inputs:
        rng = torch.Generator().manual_seed(self.context.target.seed + 7 + 1000 * tokens + number)
        positions = torch.randint(0, output_weights.POSITIONS, (tokens,), generator=rng)
        more = {"positions": positions.to(self.device)} | routed(self.moe, tokens, rng)
        return super().fresh(tokens, number, rank) | more

    def mattering(self, rank: int) -> list[str]:
        """A rank of virtual groups alone projects everything to zero."""
        return super().mattering(rank) if self.attention.real(rank) else []
