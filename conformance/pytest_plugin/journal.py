"""Handed from one xdist worker to the next: what has been measured, and what was under way when a worker died.

Without it the worker that takes over would know no results (so nothing would block), and would run the check that
killed its predecessor again.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from conformance.catalogue import Claim
from conformance.result import ClaimResult, Status


class _Line(msgspec.Struct, omit_defaults=True):
    begun: str = ""
    result: ClaimResult | None = None


class Journal:
    """A file of one line an event. One process writes it at a time: the one that runs the claims."""

    def __init__(self, path: Path):
        self._path = path

    def begin(self, claim: Claim) -> None:
        self._append(_Line(begun=claim.id))

    def record(self, result: ClaimResult) -> None:
        self._append(_Line(result=result))

    def results(self) -> dict[str, ClaimResult]:
        """Results by claim."""
        return {line.result.id: line.result for line in self._lines() if line.result}

    def victim(self) -> str:
        """The claim that was begun and never ended: its process died in it. Empty if there is none."""
        ended = self.results()
        return next((line.begun for line in self._lines() if line.begun and line.begun not in ended), "")

    def _append(self, line: _Line) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def _lines(self) -> list[_Line]:
        if not self._path.exists():
            return []
        return [msgspec.json.decode(line, type=_Line) for line in self._path.read_bytes().splitlines()]


def died(claim: Claim, required: bool) -> ClaimResult:
    """The result of a claim in whose check the whole process died."""
    reason = "the worker process died inside this check"
    return ClaimResult(claim.id, claim.layer, claim.group, Status.CRASH, required, reason)
