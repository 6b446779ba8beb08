"""Random weights, tokens and routes, what the kernel makes of them on every rank, and how far it may be off.

Gates and ups have a standard deviation of about 7, so that a limit of 10 clamps a good part of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from conformance.context import Context
from conformance.provenance.checkpoint import Checkpoint, seeded
from references import routing
from references.bound import Bounded, bounded, deviations, unordered
from references.moe import Experts
from references.moe_staged import staged_slots
from suites.moe import due, scales
from suites.moe.bench import Bench

BATCHES = (1, 8, 16, 64)
#: Further sizes of `--nightly`: none, an odd few, one past a tile, and more than any tile.
NIGHTLY = (0, 3, 129, 4096)
#: Chance that a right kernel fails any one element of all that a claim compares.
ALARM = 1e-6
_SPREAD = 32.0  # x has a standard deviation of this over the root of the hidden size


class Batch(NamedTuple):
    """Tokens of all batch sizes one after the other: x (89, H), ids and weights (89, k); more of them by night."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def cut(self, span: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.x[span], self.ids[span], self.weights[span]

    def parts(self) -> list[tuple[int, slice]]:
        """(M, its tokens) of each batch size."""
        sizes = BATCHES if len(self.x) == sum(BATCHES) else (*BATCHES, *NIGHTLY)
        starts = [sum(sizes[:n]) for n in range(len(sizes))]
        return [(m, slice(start, start + m)) for m, start in zip(sizes, starts, strict=True)]


def sizes(batch: Batch) -> str:
    """`1, 8, 16, 64`"""
    return ", ".join(str(m) for m, _ in batch.parts())


class Measured(NamedTuple):
    """By rank: the kernel's output (tokens, H), run batch by batch, and the reference with its bound."""

    batch: Batch
    got: list[torch.Tensor]
    due: list[Bounded]
    deviations: float


def checkpoint(context: Context) -> Checkpoint:
    return seeded(context.target.seed)


def batch(bench: Bench) -> Batch:
    """Routed as DeepSeek-V4 routes: sqrt(softplus), a bias that only chooses, normalised, scaled by 1.5."""
    rng = torch.Generator().manual_seed(bench.context.target.seed)
    tokens = sum(BATCHES) + (sum(NIGHTLY) if bench.context.target.nightly else 0)
    x = torch.randn(tokens, bench.hidden, generator=rng) * (_SPREAD / bench.hidden**0.5)
    logits = torch.randn(tokens, bench.experts, generator=rng)
    bias = 0.1 * torch.randn(bench.experts, generator=rng)
    routed = routing.top_k(logits, bench.slots, "sqrtsoftplus", bias, scale=1.5)
    return Batch(x.bfloat16().to(bench.device), routed.ids.to(bench.device), routed.weights.to(bench.device))


def measured(context: Context) -> Measured:
    return context.once("moe.random", lambda: _measure(context))


class Right(NamedTuple):
    """By rank: the reference (tokens, H) with its bound, for `deviations` standard deviations."""

    due: list[Bounded]
    deviations: float


def right(context: Context) -> Right:
    return context.once("moe.random.right", lambda: _right(context))


def _right(context: Context) -> Right:
    bench = Bench(context)
    tokens = batch(bench)
    allowed = deviations(tokens.x.numel() * len(context.ranks), ALARM)
    found = []
    for rank in context.ranks:
        own = bench.own(rank)
        experts = due.experts(checkpoint(context), context.geometry, own, bench.device)
        limit = context.geometry.swiglu_limit
        found.append(reference(bench, *tokens, experts, len(own), limit, allowed))
    return Right(found, allowed)


def reference(
    bench: Bench,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    experts: Experts,
    channels: int,
    limit: float | None,
    allowed: float,
) -> Bounded:
    """One rank's due result with its bound, in the kernel's declared scheme and slot sum."""
    scheme, given = bench.can.scheme, scales.random(limit)
    one = bounded(x, ids, weights, experts, channels, scheme, limit, allowed, scales=given)
    if bench.can.slot_sum == "bfloat16" and scheme != "bf16_steps":
        return unordered(one, staged_slots(x, ids, experts, channels, scheme, limit, scales=given), weights)
    return one


def run(bench: Bench, rank: int, tokens: Batch) -> torch.Tensor:
    """What the kernel makes of each batch on one rank: (tokens, H)."""
    with bench.layer(rank, checkpoint(bench.context), bench.context.geometry.swiglu_limit) as layer:
        runs = [bench.run(layer, *tokens.cut(span)) for _, span in tokens.parts()]
    return torch.cat(runs)


def _measure(context: Context) -> Measured:
    bench, (references, allowed) = Bench(context), right(context)
    tokens = batch(bench)
    return Measured(tokens, [run(bench, rank, tokens) for rank in context.ranks], references, allowed)


def off(got: torch.Tensor, right: Bounded, allowed: float) -> torch.Tensor:
    """|error| over its bound, element by element: at most 1 for a right kernel. A NaN counts as infinitely off."""
    ratio = (got.double() - right.value).abs() / right.bound(allowed).clamp(min=torch.finfo(torch.float64).tiny)
    return ratio.nan_to_num(nan=torch.inf)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative Frobenius norm of the error; 0 where there are no tokens."""
    return float((got.double() - want).norm() / want.norm()) if len(want) else 0.0


def highest(ratio: torch.Tensor) -> float:
    """The largest of them; 0 where there are no tokens."""
    return float(ratio.max()) if ratio.numel() else 0.0
