"""The seam of layer e2e: a fault that an engine plants in itself, at the largest size or at all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class EngineFault(NamedTuple):
    """`kind` and what it needs, as the engines' adapters know them: `rank`, `layer`, `expert`, `parts`.

    `everywhere`: at every size, so that sizes agree with each other.
    """

    kind: str
    where: dict[str, Any]
    everywhere: bool = False

    def planted(self, sizes: tuple[int, ...]) -> dict[int, dict[str, Any]]:
        """Size -> the fault that its engine plants."""
        return {tp: {"kind": self.kind, **self.where} for tp in (sizes if self.everywhere else sizes[-1:])}


def engine(kind: str, everywhere: bool = False, **where: Any) -> EngineFault:
    return EngineFault(kind, where, everywhere)


#: What a claim looks at of an engine's record: the rest need not be measured for a fault that it must catch.
NEEDS: dict[str, frozenset[str]] = {
    "e2e.answers": frozenset({"solo"}),
    "e2e.repeat": frozenset({"solo", "again"}),
    "e2e.parity.logprobs": frozenset({"forced"}),
    "e2e.parity.long": frozenset({"long"}),
    "e2e.parity.divergence": frozenset({"solo"}),
    "e2e.reference.logprobs": frozenset({"forced"}),
    "e2e.reference.blocks": frozenset({"blocks"}),
    "e2e.schedule.batch": frozenset({"solo", "batch"}),
    "e2e.schedule.chunked": frozenset({"solo"}),
    "e2e.graph.parity": frozenset({"solo", "batch"}),
    "e2e.mtp.acceptance": frozenset(),
    "e2e.mtp.parity": frozenset(),
    "e2e.serving.answers": frozenset(),
    "e2e.serving.same": frozenset({"solo"}),
    "e2e.serving.load": frozenset(),
    "e2e.serving.errors": frozenset(),
}


def needed(claims: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(NEEDS[name] for name in claims))
