"""A stack's routed-expert loader against the references, over geometries that the gate would never ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import hardware_profiles
from conformance import catalogue, geometry
from conformance.context import Context
from conformance.gate.runner import evaluate
from conformance.result import NO_GO, Status
from conformance.stacks.protocols import ShardLoader, Stack
from conformance.target import Target

_BASE, _GROUP, _LOADER = "deepseek-v4-tiny", "loader.moe", "loader"
_EXPERTS = 2
#: What models have, and what is one scale group off it: 2048 and 2304 of DeepSeek, 2880 of gpt-oss.
WIDTHS = (2048, 2080, 2304, 2880, 96)
#: Tensor-parallel sizes that machines are run at; the others are drawn.
USUAL = (1, 2, 3, 4, 6, 8, 16)


class Case(NamedTuple):
    """Ordered so that the smallest is the one to look at: few ranks first, then few scale groups."""

    tp: int
    groups: int  #: scale groups of the intermediate axis
    backend: str

    @property
    def intermediate(self) -> int:
        return self.groups * geometry.SCALE_GROUP

    def __str__(self) -> str:
        return f"intermediate {self.intermediate} ({self.groups} scale groups) at TP{self.tp}, {self.backend}"


class Judge:
    """Callable on a case: which claims of the loader fail there, in words; empty if none does.

    `stack` opens the stack for a backend (kept open by the caller), `spoil` plants a fault at its loader. `statuses`
    keeps each case's outcome: `right`, `broken`, `refused` (the stack takes no such configuration), `unproved`.
    """

    def __init__(
        self,
        stack: Callable[[str], Stack],
        capability: tuple[int, int] | None,
        spoil: Callable[[ShardLoader], ShardLoader] = lambda loader: loader,
    ):
        self._stack, self._capability, self._spoil = stack, capability, spoil
        self.statuses: dict[Case, str] = {}
        self.reasons: dict[Case, str] = {}

    def __call__(self, case: Case) -> str:
        stack = self._stack(case.backend)
        context = Context(target(case, self._capability), stack.planner(), self._spoil(stack.loader()))
        failed, reasons, seen = [], [], set()
        for claim in catalogue.claims().values():
            if claim.layer == _LOADER and claim.group == _GROUP and claim.check:
                status, reason, _ = evaluate(claim, stack, context)
                seen.add(status)
                if status is not Status.PASS:
                    reasons.append(reason)
                if status in NO_GO:
                    failed.append(f"{claim.id}: {reason}")
        self.statuses[case] = _outcome(seen)
        self.reasons[case] = reasons[0] if reasons else ""
        return "\n".join(sorted(failed, key=_telling))


def target(case: Case, capability: tuple[int, int] | None) -> Target:
    """A model that is small in everything else, and whose other axes every rank gets a whole share of."""
    changes = {
        "moe_intermediate_size": case.intermediate,
        "n_routed_experts": _EXPERTS,
        "num_experts_per_tok": 1,
        "num_attention_heads": 8 * case.tp,
        "o_groups": case.tp,
        "vocab_size": 64 * case.tp,
    }
    config = geometry.load(_BASE).config | changes
    model = geometry.parse(config, f"{_BASE}, intermediate {case.intermediate}")
    backend = hardware_profiles.backends()[case.backend]
    return Target(model, case.tp, backend.name, backend.attention, capability, backend.intermediate, backend.hidden)


def first(tps: range, backends: tuple[str, ...]) -> Iterator[Case]:
    """The widths of known models at the sizes that are run, before anything is drawn."""
    for backend in backends:
        for tp in tps if len(tps) == 1 else [tp for tp in tps if tp in USUAL]:
            for width in WIDTHS:
                yield Case(tp, width // geometry.SCALE_GROUP, backend)


def _outcome(seen: set[Status]) -> str:
    if seen & NO_GO:
        return "broken"
    if seen == {Status.PASS}:
        return "right"
    return "refused" if seen <= {Status.PASS, Status.BLOCKED, Status.NOT_SUPPORTED} else "unproved"


def _telling(line: str) -> tuple[bool, bool]:
    """What is lost comes first, then offsets, then what follows from them; scales before weights."""
    claim = line.partition(":")[0]
    return not claim.endswith(".partition"), "_scale" not in claim
