"""Tokens that crowd on an expert: more than surely meet in one tile of the kernel (MoeCapabilities.tile_tokens).

Their last bits may change from call to call. What did change is excused from being the same bits, and judged instead by
the FP64 reference, within the kernel's bound.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from conformance.errors import AdapterError
from conformance.result import Finding
from references.bound import deviations
from suites.moe import due, random_batch
from suites.moe.bench import Bench
from suites.moe.bits import same

#: Findings that are kept, and rows that are kept before they are judged.
_MOST, _AT_ONCE = 12, 2048


def crowded(ids: torch.Tensor, tile_tokens: int) -> torch.Tensor:
    """Tokens (M,) bool, of which one expert at least serves more than `tile_tokens`; none where that is 0.

    ids (M, k), -1: no expert. Raises AdapterError for a negative number.
    """
    if tile_tokens < 0:
        raise AdapterError(f"the kernel declares tile_tokens={tile_tokens}: a number of tokens, or 0, was due")
    if not tile_tokens:
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    served = torch.bincount((ids.flatten() + 1).long(), minlength=1)
    served[0] = 0  # no expert
    return (served > tile_tokens)[ids.long() + 1].any(1)


def excused(got: torch.Tensor, want: torch.Tensor, ids: torch.Tensor, tile_tokens: int) -> torch.Tensor:
    """Outputs (M, H) in other bits, of tokens that crowd; `got` is of the first M tokens of ids."""
    return ~same(got, want) & crowded(ids, tile_tokens)[: len(got), None]


class Tokens(NamedTuple):
    """x (M, H) bfloat16, ids (M, k) int32, weights (M, k) float32."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


class _Excused(NamedTuple):
    where: str
    got: torch.Tensor
    inputs: Tokens


class Excuses:
    """`compared`: outputs that were judged by the reference."""

    def __init__(self, bench: Bench):
        self.bench, self.compared = bench, 0
        self._rows: dict[int, list[_Excused]] = {}
        self._findings: list[Finding] = []
        #: Rank -> tokens so far, and the largest error over its bound.
        self._told: dict[int, tuple[int, float]] = {}

    def due(self, rank: int, what: str, got: torch.Tensor, want: torch.Tensor, inputs: Tokens) -> torch.Tensor:
        """`want` (M, H), but what was got where that is excused; `got` is of the first M of the inputs' tokens."""
        other = excused(got, want, inputs.ids, self.bench.can.tile_tokens)
        self.keep(rank, what, got, want, inputs, other)
        return torch.where(other, got, want)

    def keep(
        self, rank: int, what: str, got: torch.Tensor, want: torch.Tensor, inputs: Tokens, other: torch.Tensor
    ) -> None:
        """To be judged: rows with outputs in `other` bits, on both sides, since either may be wrong."""
        rows = self._rows.setdefault(rank, [])
        for row in other.any(1).nonzero().flatten().tolist():
            own = Tokens(*(one[row].clone() for one in inputs))
            rows.append(_Excused(f"{what}, token {row}", got[row].clone(), own))
            rows.append(_Excused(f"beside {what}, token {row}", want[row].clone(), own))
            if len(rows) >= _AT_ONCE:
                self._judge(rank)

    def judged(self) -> tuple[list[Finding], list[str]]:
        """What of all that is out of bounds, and words for what was excused."""
        for rank in self._rows:
            self._judge(rank)
        notes = [
            f"rank {rank}: {tokens} tokens that crowd are in other bits, err/bound {worst:.3f}"
            for rank, (tokens, worst) in self._told.items()
        ]
        return self._findings[:_MOST], notes

    def _judge(self, rank: int) -> None:
        """What is kept of a rank so far; references are slow, so that many rows are one call."""
        if rows := self._rows[rank]:
            found, worst = self._within_bound(rank, rows)
            tokens, before = self._told.get(rank, (0, 0.0))
            self._told[rank] = tokens + len(rows) // 2, max(before, worst)
            self._findings += found
            rows.clear()

    def _within_bound(self, rank: int, rows: list[_Excused]) -> tuple[list[Finding], float]:
        b, context = self.bench, self.bench.context
        limit, own = context.geometry.swiglu_limit, b.own(rank)
        got = torch.stack([one.got for one in rows])
        x, ids, weights = (torch.stack(parts) for parts in zip(*(one.inputs for one in rows), strict=True))
        experts = due.experts(random_batch.checkpoint(context), context.geometry, own, b.device)
        allowed = deviations(got.numel(), random_batch.ALARM)
        right = random_batch.reference(b, x, ids, weights, experts, len(own), limit, allowed)
        ratio, findings = random_batch.off(got, right, allowed), list[Finding]()
        self.compared += ratio.numel()
        for row in (~(ratio.amax(1) <= 1)).nonzero().flatten().tolist()[:_MOST]:
            column = int(ratio[row].argmax())
            where = f"rank {rank}, {rows[row].where}, output {column}"
            value, over = f"{float(right.value[row, column]):g}", f"{float(ratio[row, column]):.3g} times the bound"
            findings.append(Finding(where, value, f"{float(got[row, column]):g}", over, rank=rank))
        return findings, random_batch.highest(ratio)
