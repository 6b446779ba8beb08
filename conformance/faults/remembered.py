"""A planner that asks the stack each question once: faults are planted in front of it, and the stack stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from conformance.stacks.protocols import KernelChoice, KnownBackends, PlanBuilder, PlanOutcome, PlanRequest


def _key(request: PlanRequest) -> Hashable:
    r = request
    return r.geometry.name, r.tp, r.capability, r.attention, r.moe, r.force, r.expert_parallel, r.draft


class RememberedPlanner:
    """See protocols.PlanBuilder. What raises is asked again; a question that `inner` lacks raises AttributeError."""

    def __init__(self, inner: PlanBuilder):
        self._inner = inner
        self._known: dict[Hashable, Any] = {}

    def _once(self, key: Hashable, ask: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = ask()
        return self._known[key]

    def plan(self, request: PlanRequest) -> PlanOutcome:
        found: PlanOutcome = self._once(("plan", _key(request)), lambda: self._inner.plan(request))
        return found

    def backends(self) -> KnownBackends:
        found: KnownBackends = self._once("backends", self._inner.backends)
        return found

    def guards(self, requests: Sequence[PlanRequest]) -> list[PlanOutcome]:
        keys = [("guard", _key(request)) for request in requests]
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._known}
        if new:
            self._known.update(zip(new, self._inner.guards(list(new.values())), strict=True))
        return [self._known[key] for key in keys]

    def kernel(self, request: PlanRequest, widths: Sequence[int]) -> KernelChoice:
        key = ("kernel", _key(request), tuple(widths))
        found: KernelChoice = self._once(key, lambda: self._inner.kernel(request, widths))
        return found

    def schemes(self, request: PlanRequest) -> dict[str, str]:
        found: dict[str, str] = self._once(("schemes", _key(request)), lambda: self._inner.schemes(request))
        return found
