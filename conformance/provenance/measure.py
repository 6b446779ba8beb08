"""Measure a rank's routed experts as a checkpoint loads them; digit passes explain, where anything differs.

First load: every expert of every parameter, scales before weights, experts ascending, before anything is read. So an
expert or a parameter that destroys another shows. Second load, over other memory: some experts of every parameter,
descending, weights before scales, shards reversed, with all 256 byte values and one tensor of nothing but zeros. So
a loader that depends on order, on values, or on its first call shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from conformance.errors import StackError
from conformance.provenance import fingerprint
from conformance.provenance.boxes import ProvenanceMap, State, differences
from conformance.provenance.trace import trace

if TYPE_CHECKING:
    from conformance.stacks.protocols import ExpertsLayer

T = TypeVar("T")

#: Experts that digit passes number on a difference: enough to see a shift between neighbours.
_TRACED = 3
#: Experts of the second load, spread over all of them.
_RELOADED = 16


class Due(NamedTuple):
    """What is due of one parameter: the map of all experts (SOURCE and ZERO boxes), the shards it is loaded from, and a
    checkpoint tensor's (rows, bytes)."""

    map: ProvenanceMap
    shards: tuple[str, ...]
    shape: tuple[int, int]


def measure(
    layer: ExpertsLayer, due: ProvenanceMap, shards: tuple[str, ...], shape: tuple[int, int], seed: int
) -> ProvenanceMap:
    """One parameter alone. Raises what the layer raises."""
    outcome = measure_layer(layer, {due.parameter: Due(due, shards, shape)}, seed)[due.parameter]
    if isinstance(outcome, StackError):
        raise outcome
    return outcome


def measure_layer(layer: ExpertsLayer, due: dict[str, Due], seed: int) -> dict[str, ProvenanceMap | StackError]:
    """Every parameter's map: of all experts where both loads agree with it, of the traced ones where not, or the
    StackError that loading it raised."""
    run = _Run(layer, due, seed)
    first = run.load(run.every, fingerprint.FIRST)
    second = run.load(run.some, fingerprint.SECOND)
    return {name: run.failed.get(name) or run.explain(name, first, second) for name in due}


class _Run:
    def __init__(self, layer: ExpertsLayer, due: dict[str, Due], seed: int):
        self._layer, self._due, self._seed = layer, due, seed
        self.failed: dict[str, StackError] = {}
        experts = max(one.map.shape[0] for one in due.values())
        self.every = list(range(experts))
        step = -(-experts // _RELOADED)
        self.some = sorted({*range(0, experts, step), experts - 1})

    def load(self, experts: list[int], kind: fingerprint.Kind) -> dict[str, fingerprint.Seen]:
        """Prefill all parameters, load these experts of each, and only then read any."""
        windows: dict[str, fingerprint.Windows] = {}
        order = sorted(self._due, key=lambda name: (name.endswith("_scale"), name), reverse=kind is fingerprint.FIRST)
        if kind is fingerprint.SECOND:
            experts = experts[::-1]
        for name in order:
            if (prepared := self._attempt(name, self._prepare, name, experts, kind)) is not None:
                windows[name] = prepared
        for expert in experts:
            for name in order:
                self._attempt(name, self._load, name, expert, windows, kind)
        found: dict[str, fingerprint.Seen] = {}
        for name in order:
            if (seen := self._attempt(name, self._verify, name, experts, windows)) is not None:
                found[name] = seen
        return found

    def _attempt(self, name: str, step: Callable[..., T], *arguments: object) -> T | None:
        """The step's result. A parameter whose loading has failed is left alone; the others go on."""
        if name not in self.failed:
            try:
                return step(*arguments)
            except StackError as error:
                self.failed[name] = error
        return None

    def _prepare(self, name: str, experts: Iterable[int], kind: fingerprint.Kind) -> fingerprint.Windows:
        one = self._due[name]
        windows = fingerprint.Windows(self._layer, one.shape, one.shards, list(experts), self._seed, kind)
        self._layer.fill(name, kind.prefill)
        return windows

    def _load(self, name: str, expert: int, windows: dict[str, fingerprint.Windows], kind: fingerprint.Kind) -> None:
        shards = self._due[name].shards
        for shard in shards if kind is fingerprint.FIRST else shards[::-1]:
            self._layer.load(name, shard, expert, windows[name].source(shard, expert))

    def _verify(self, name: str, experts: list[int], windows: dict[str, fingerprint.Windows]) -> fingerprint.Seen:
        return fingerprint.verify(self._layer, self._due[name].map, windows[name], experts)

    def explain(
        self, name: str, first: dict[str, fingerprint.Seen], second: dict[str, fingerprint.Seen]
    ) -> ProvenanceMap | StackError:
        one, a, b = self._due[name], first[name], second[name]
        experts = one.map.shape[0]
        if a.clean and b.clean and a.tails == b.tails:
            return fingerprint.seen(one.map, a.tails)
        wrong = sorted({*a.wrong, *b.wrong})
        odd = sorted({*wrong, *a.uneven, *b.uneven}) or [0]
        try:
            traced = trace(self._layer, name, one.map.rank, one.shards, one.shape, to_trace(odd, experts))
        except StackError as error:
            return error
        return msgspec.structs.replace(
            traced,
            shape=one.map.shape,
            method=f"fingerprint of {experts} experts ({len(a.wrong)} differ), of {len(self.some)} loaded again "
            f"({len(b.wrong)} differ), then digit passes",
            differing=odd,
            unexplained=bool(wrong) and not _wrong(one.map.of_experts(traced.covered), traced),
        )


def _wrong(due: ProvenanceMap, seen: ProvenanceMap) -> bool:
    """Is a byte not the one that is due? Zero boxes that are untouched are not wrong by themselves."""
    return any(d.expected_origin or d.got_state not in (State.ZERO, State.UNTOUCHED) for d in differences(due, seen))


def to_trace(wrong: list[int], experts: int) -> list[int]:
    """Expert 0 (so that all ranks share one), the first that differs with its neighbours after it, and the last."""
    first = min(wrong[0], max(0, experts - _TRACED))
    return sorted({0, *range(first, min(first + _TRACED, experts)), wrong[0], wrong[-1]})
