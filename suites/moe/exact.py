"""Comparison of exact probes: not one value may differ (the sign of a zero aside)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.result import Evidence, Finding
from suites.moe.bench import Bench

_MOST = 12


class Exact:
    """Collects what differs, and writes the evidence. `where(token, column)` names a place of one comparison."""

    def __init__(self, bench: Bench, claim: str):
        self.bench, self.claim = bench, claim
        self.findings: list[Finding] = []
        self.wrong: dict[str, int] = {}
        self.compared = 0

    def compare(
        self,
        rank: int,
        expert: int | None,
        got: torch.Tensor,
        want: torch.Tensor,
        where: Callable[[int, int], str],
        meaning: Callable[[int, int], str] = lambda token, column: "",
        slack: torch.Tensor | None = None,
    ) -> None:
        """got (M, H) of the output type, want (M, H) in FP64, or exact in the output type; `slack` is how far a right
        result may be off."""
        if slack is not None:
            off = (got.double() - want).abs() > slack
        else:
            off = got != want if got.dtype == want.dtype else got.double() != want
        bad = off | got.isnan()
        self.compared += bad.numel()
        count = int(bad.sum())
        name = f"rank {rank}"
        self.wrong[name] = self.wrong.get(name, 0) + count
        if not count:
            return
        token, column = divmod(int(bad.flatten().int().argmax()), bad.shape[1])
        value = float(got[token, column])
        self.findings.append(
            Finding(
                where=f"rank {rank}{'' if expert is None else f', expert {expert}'}, {where(token, column)}",
                expected=f"{float(want[token, column]):g}",
                got="NaN: never written, or a NaN" if value != value else f"{value:g}",
                meaning=meaning(token, column) or f"the first of {count} of {bad.numel()} values",
                rank=rank,
                expert=expert,
            )
        )

    def evidence(self, right: str, seed: int | None = None, notes: list[str] | None = None) -> Evidence:
        measured: dict[str, Any] = {name: f"{count} values differ" for name, count in self.wrong.items()}
        first = self.findings[0] if self.findings else None
        return Evidence(
            ok=first is None and self.compared > 0,
            summary=right if first is None else f"{first.where}: {first.got}, {first.expected} due; {first.meaning}",
            expected=f"{self.compared} values, bit for bit",
            measured=measured,
            findings=self.findings[:_MOST],
            notes=notes or [],
            method=self.bench.words,
            seed=seed,
        )
