"""The claims, as data: `claims/LAYER.toml`, `claims/SUBJECT.toml`; which group needs which: `dependencies.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from conformance.errors import nearest
from conformance.needs import lacks

if TYPE_CHECKING:
    from conformance.context import Context
    from conformance.result import Evidence
    from conformance.stacks.protocols import Stack
    from conformance.target import Target

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
    #: Options without which there is nothing to look at: `checkpoint` is `--checkpoint`.
    needs_option: tuple[str, ...] = ()
    #: The layer whose stack is judged, if it is in scope and another than the claim's own: whoever loads weights also
    #: converts them, whichever library's kernels run on them.
    of: str = ""
    #: What profile, geometry and tensor-parallel size must have for the claim to apply: see needs.lacks.
    needs: tuple[str, ...] = ()

    @property
    def layer(self) -> str:
        return self.id.split(".", 1)[0]

    @property
    def together(self) -> bool:
        """Does it run all ranks at once, each on a device of its own, where there are as many?"""
        return self.group.endswith(".world")

    def not_applicable(self, target: Target, given: Collection[str] = ()) -> str:
        """Why the claim does not apply to this run, from its profile, geometry, size and options; empty if it does."""
        if ungiven := [option for option in self.needs_option if option not in given]:
            return f"--{ungiven[0]} is not given"
        geometry = target.geometry
        lacking = [field for field in self.needs_geometry if not getattr(geometry, field)]
        if lacking:
            return f"{geometry.name} has no {' and no '.join(lacking)}".replace("_", " ")
        return next(filter(None, (lacks(target, need) for need in self.needs)), "")

    def function(self) -> Check:
        module, _, name = self.check.partition(":")
        function: Check = getattr(import_module(module), name)
        return function


@cache
def claims() -> dict[str, Claim]:
    """Every claim by id, in schedule order: layers, then groups after the groups they need, then as written."""
    written = [
        msgspec.convert(entry, Claim) for path in _written() for entry in tomllib.loads(path.read_text())["claim"]
    ]
    found = {claim.id: claim for claim in written}
    assert len(found) == len(written), "two claims share an id"
    needs = dependencies()
    groups = dict.fromkeys(claim.group for claim in written)
    order = list(TopologicalSorter({g: needs.get(g, ()) for g in groups}).static_order())
    rank = {claim.id: n for n, claim in enumerate(written)}
    ordered = sorted(written, key=lambda c: (LAYERS.index(c.layer), order.index(c.group), rank[c.id]))
    return {claim.id: claim for claim in ordered}


def _written() -> list[Path]:
    """The files of claims: one a layer, and then those on a subject of their own."""
    found = {path.stem: path for path in sorted(_FOLDER.glob("*.toml")) if path.stem != "dependencies"}
    return [found.pop(layer) for layer in LAYERS] + list(found.values())


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


def named(words: str) -> list[str]:
    """The ids that a user names: one, or all that a pattern matches. Raises UsageError with the nearest id."""
    found = [claim_id for claim_id in claims() if fnmatchcase(claim_id, words)] if "*" in words else []
    return found or [get(words).id]


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
