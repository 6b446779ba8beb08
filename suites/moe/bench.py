"""The kernel under test and what every check does with it: open a rank, make tokens, poison, run in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from conformance.context import Context
from conformance.provenance import loaded
from conformance.provenance.boxes import Span
from conformance.provenance.checkpoint import Checkpoint
from conformance.stacks.protocols import LoadedWeights, MoeLayer, MoeRequest
from references import plan
from references.nvfp4 import GlobalScales
from suites.moe import scales

#: Tokens that a single-expert probe sends past the rank's own columns, to see that nothing answers there.
_FOREIGN = 32


class Bench:
    def __init__(self, context: Context):
        self.context = context
        self.kernel = context.moe
        self.can = self.kernel.capabilities()
        g = context.geometry
        self.experts = min(g.experts, self.can.experts or g.experts)
        #: Slots of a token: the model's, or on a few experts enough to sum more than two.
        self.slots = min(self.experts, max(g.top_k, 3))
        #: Slots of a token that probes one expert: the others carry weight 0. On a few experts, routing shows those.
        self.probe_slots = 1 if self.can.experts else self.slots

    @property
    def hidden(self) -> int:
        return self.context.geometry.hidden_size

    @property
    def device(self) -> str:
        return self.can.device

    @property
    def words(self) -> str:
        """How this was measured."""
        return self.told(self.can.ranks)

    def told(self, ranks: str) -> str:
        """The same of ranks that run in another way."""
        g, can = self.context.geometry, self.can
        return (
            f"{self.experts} of {g.experts} experts, {can.scheme} x MXFP4 on {can.device_words}; ranks {ranks}; "
            f"weights: {self.context.maps.origin}"
        )

    def own(self, rank: int, tp: int | None = None) -> Span:
        """The channels of the intermediate axis that are due on a rank."""
        total, tp = self.context.geometry.intermediate, tp or self.context.target.tp
        per_rank = plan.routed_intermediate(total, tp).per_rank
        return Span(min(rank * per_rank, total), min((rank + 1) * per_rank, total))

    def near(self, rank: int) -> list[int]:
        """The rank's channels, and some of its neighbours' before and behind them."""
        own, total = self.own(rank), self.context.geometry.intermediate
        return list(range(max(0, own.start - _FOREIGN), min(total, own.stop + _FOREIGN)))

    def request(
        self,
        rank: int,
        checkpoint: Checkpoint,
        limit: float | None,
        whole: bool = False,
        global_scales: GlobalScales | None = None,
    ) -> MoeRequest:
        """A rank's layer as loaded; with `whole` the layer of one rank alone, its weights by the reference's map.
        `global_scales`: other than those of random inputs."""
        t = self.context.target
        tp = 1 if whole else t.tp
        weights: LoadedWeights = (
            loaded.due(t, tp=1).weights(0, checkpoint) if whole else self.context.weights(rank, checkpoint)
        )
        return MoeRequest(
            t.geometry,
            tp,
            rank,
            t.backend,
            t.capability,
            self.experts,
            limit,
            weights,
            global_scales=global_scales or scales.random(limit),
        )

    @contextmanager
    def layer(
        self,
        rank: int,
        checkpoint: Checkpoint,
        limit: float | None,
        whole: bool = False,
        global_scales: GlobalScales | None = None,
    ) -> Iterator[MoeLayer]:
        """What `request` asks for, open."""
        layer = self.kernel.open(self.request(rank, checkpoint, limit, whole, global_scales))
        try:
            yield layer
        finally:
            layer.close()

    def run(
        self, layer: MoeLayer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, tactic: int | None = None
    ) -> torch.Tensor:
        """(M, H) of the output type. Each chunk's output is poisoned with NaN before its call. M may be 0."""
        out = torch.full(x.shape, torch.nan, dtype=getattr(torch, self.can.output), device=self.device)
        for start in range(0, max(x.shape[0], 1), self.can.tokens):
            part = slice(start, start + self.can.tokens)
            layer.run(x[part], ids[part], weights[part], out[part], tactic)
        return out

    def probe(self, layer: MoeLayer, x: torch.Tensor, expert: int, slots: int = 0) -> torch.Tensor:
        """Every token through one expert with weight 1; its other slots hold the next experts with weight 0.

        `slots`: fewer than `probe_slots`, where other probes have shown those.
        """
        slot = torch.arange(slots or self.probe_slots, device=self.device, dtype=torch.int32)
        ids = ((slot + expert) % self.experts).repeat(x.shape[0], 1)
        weights = (slot == 0).float().repeat(x.shape[0], 1)
        return self.run(layer, x, ids, weights)

    def one_hot(self, columns: list[int], value: float = 1.0) -> torch.Tensor:
        """A token for each column: x (len(columns), H) bfloat16."""
        x = torch.zeros((len(columns), self.hidden), dtype=torch.bfloat16, device=self.device)
        x[torch.arange(len(columns)), torch.tensor(columns)] = value
        return x
