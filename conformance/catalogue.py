"""The claims, as data: `claims/LAYER.toml`, and which group needs which (`claims/dependencies.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from conformance.errors import nearest

if TYPE_CHECKING:
    from conformance.context import Context, Target
    from conformance.result import Evidence
    from conformance.stacks.protocols import Stack

    Check = Callable[[Stack, Context], Evidence]

_FOLDER = Path(__file__).with_name("claims")
#: In the order in which they build on each other.
LAYERS = ("plan", "loader", "quant", "attention", "moe", "graph", "e2e")


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One testable statement. `check` is `module:function`; without one, this version cannot test the claim."""

    id: str
    group: str
    title: str
    severity: str
    source: str
    check: str = ""
    #: Geometry fields that must be above zero for the claim to apply.
    needs_geometry: tuple[str, ...] = ()
    #: What profile, geometry and tensor-parallel size must have for the claim to apply: see Target.lacks.
    needs: tuple[str, ...] = ()

    @property
    def layer(self) -> str:
        return self.id.split(".", 1)[0]

    def not_applicable(self, target: Target) -> str:
        """Why the claim does not apply to this run, from its profile, geometry and size alone; empty if it does."""
        geometry = target.geometry
        lacking = [field for field in self.needs_geometry if not getattr(geometry, field)]
        if lacking:
            return f"{geometry.name} has no {' and no '.join(lacking)}".replace("_", " ")
        return next(filter(None, map(target.lacks, self.needs)), "")

    def function(self) -> Check:
        module, _, name = self.check.partition(":")
        function: Check = getattr(import_module(module), name)
        return function


@cache
def claims() -> dict[str, Claim]:
    """Every claim by id, in schedule order: layers, then groups after the groups they need, then as written."""
    written = [
        msgspec.convert(entry, Claim)
        for layer in LAYERS
        for entry in tomllib.loads((_FOLDER / f"{layer}.toml").read_text())["claim"]
    ]
    found = {claim.id: claim for claim in written}
    assert len(found) == len(written), "two claims share an id"
    needs = dependencies()
    groups = dict.fromkeys(claim.group for claim in written)
    order = list(TopologicalSorter({g: needs.get(g, ()) for g in groups}).static_order())
    rank = {claim.id: n for n, claim in enumerate(written)}
    ordered = sorted(written, key=lambda c: (LAYERS.index(c.layer), order.index(c.group), rank[c.id]))
    return {claim.id: claim for claim in ordered}


@cache
def dependencies() -> dict[str, tuple[str, ...]]:
    """group -> the groups it needs."""
    data = tomllib.loads((_FOLDER / "dependencies.toml").read_text())
    return {group: tuple(needs) for group, needs in data.items()}


def get(claim_id: str) -> Claim:
    """Raises UsageError with the nearest id."""
    if claim_id not in claims():
        raise nearest(claim_id, claims(), "claim")
    return claims()[claim_id]


def matching(patterns: Iterable[str]) -> list[str]:
    """Ids that any pattern (`loader.*`) matches. Raises ValueError for a pattern that matches none."""
    chosen: set[str] = set()
    for pattern in patterns:
        hits = {claim_id for claim_id in claims() if fnmatchcase(claim_id, pattern)}
        if not hits:
            raise ValueError(f"the must-pass pattern {pattern!r} matches no claim")
        chosen |= hits
    return [claim_id for claim_id in claims() if claim_id in chosen]


def check_layers(names: Iterable[str]) -> tuple[str, ...]:
    """Raises UsageError for an unknown layer; returns them in layer order."""
    names = list(names)
    for name in names:
        if name not in LAYERS:
            raise nearest(name, LAYERS, "layer")
    return tuple(layer for layer in LAYERS if layer in names)
