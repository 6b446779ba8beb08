"""Collects what differs from what is due, and writes the evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.result import Evidence, Finding

_MOST = 12
Where = Callable[[tuple[int, ...]], str]


def at(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"


class Exact:
    """`runs`: how it was measured."""

    def __init__(self, runs: str, seed: int | None = None):
        self.runs, self.seed = runs, seed
        self.findings: list[Finding] = []
        self.wrong: dict[str, int] = {}
        self.notes: list[str] = []
        self.compared = 0

    def same(
        self, what: str, got: torch.Tensor, want: torch.Tensor, where: Where = at, show: str = "", but: Any = None
    ) -> None:
        """Bit for bit (any two NaNs alike); `show` is a format for values; `but` a mask of what is not looked at."""
        if not self._shaped(what, got, want):
            return
        got = got.cpu()
        wrong = got != want
        if want.is_floating_point():
            wrong &= ~(got.isnan() & want.isnan())
        if but is not None:
            wrong &= ~but
        self._count(what, wrong, want, got, where, show)

    def inside(
        self, what: str, got: torch.Tensor, low: torch.Tensor, high: torch.Tensor, where: Where = at, show: str = ""
    ) -> None:
        """low <= got <= high; a NaN is outside."""
        if not self._shaped(what, got, low):
            return
        got = got.cpu()
        wrong = ~((got >= low) & (got <= high))
        nearest = torch.where(got < low, low, high)
        self._count(what, wrong, nearest, got, where, show)

    def true(self, what: str, holds: bool, expected: str, got: str, meaning: str = "") -> None:
        self.compared += 1
        self.wrong.setdefault(what, 0)
        if not holds:
            self.wrong[what] += 1
            self.findings.append(Finding(what, expected, got, meaning))

    def raises(self, what: str, call: Callable[[], object], words: str) -> None:
        """`call` must be refused by the stack."""
        from conformance.errors import StackRefused

        try:
            call()
        except StackRefused:
            self.true(what, True, "", "")
        else:
            self.true(what, False, "an error", "accepted", words)

    def _shaped(self, what: str, got: torch.Tensor, want: torch.Tensor) -> bool:
        if got.shape == want.shape:
            return True
        self.true(f"shape of {what}", False, str(tuple(want.shape)), str(tuple(got.shape)))
        return False

    def _count(
        self, what: str, wrong: torch.Tensor, want: torch.Tensor, got: torch.Tensor, where: Where, show: str
    ) -> None:
        self.compared += wrong.numel()
        count = int(wrong.sum())
        self.wrong[what] = self.wrong.get(what, 0) + count
        if not count:
            return
        index = tuple(int(i) for i in torch.unravel_index(wrong.flatten().int().argmax(), wrong.shape))
        style = show or ("g" if want.is_floating_point() else "#04x")
        self.findings.append(
            Finding(
                where=f"{what} {where(index)}",
                expected=format(want[index].item(), style),
                got=format(got[index].item(), style),
                meaning=f"the first of {count} of {wrong.numel()}",
            )
        )

    def evidence(self, right: str, rules: Any = None) -> Evidence:
        """`rules`: what was declared, and held to."""
        first = self.findings[0] if self.findings else None
        return Evidence(
            ok=first is None and self.compared > 0,
            summary=right if first is None else f"{first.where}: {first.got}, {first.expected} due; {first.meaning}",
            expected=rules or f"{self.compared} values as due",
            measured={name: f"{count} differ" for name, count in self.wrong.items()},
            findings=self.findings[:_MOST],
            notes=self.notes,
            method=f"{self.runs}; {self.compared} comparisons",
            seed=self.seed,
        )
