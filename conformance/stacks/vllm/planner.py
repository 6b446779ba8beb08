"""Layer `plan`: ask the worker, and give its answer the protocol's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.stacks.protocols import Axis, KernelChoice, KnownBackends, PlanOutcome, PlanRequest

if TYPE_CHECKING:
    from conformance.stacks.vllm.stack import VllmWorker


class VllmPlanner:
    """See protocols.PlanBuilder. Under `force` the outcome stays vLLM's own; only the axes are forced."""

    def __init__(self, worker: VllmWorker) -> None:
        self._worker = worker

    def plan(self, request: PlanRequest) -> PlanOutcome:
        if request.draft:
            return self.guards([request])[0]
        fields: dict[str, Any] = self._worker.call(
            "plan",
            folder=self._worker.model_folder(request.geometry),
            tp=request.tp,
            capability=request.capability,
            attention=request.attention,
            moe=request.moe,
            force=request.force,
            expert_parallel=request.expert_parallel,
        )
        return _outcome(fields)

    def backends(self) -> KnownBackends:
        return msgspec.convert(self._worker.call("known"), KnownBackends)

    def guards(self, requests: Sequence[PlanRequest]) -> list[PlanOutcome]:
        if not requests:
            return []
        geometry = requests[0].geometry
        if any(r.geometry is not geometry for r in requests):
            return [self.guards([r])[0] for r in requests]
        answers: list[dict[str, Any]] = self._worker.call(
            "guards",
            folder=self._worker.model_folder(geometry),
            requests=[(r.tp, r.capability, r.attention, r.moe, r.expert_parallel, r.draft) for r in requests],
        )
        return [_outcome(fields) for fields in answers]

    def kernel(self, request: PlanRequest, widths: Sequence[int]) -> KernelChoice:
        fields = self._worker.call(
            "kernel",
            folder=self._worker.model_folder(request.geometry),
            tp=request.tp,
            capability=request.capability,
            moe=request.moe,
            widths=list(widths),
        )
        return msgspec.convert(fields, KernelChoice)

    def schemes(self, request: PlanRequest) -> dict[str, str]:
        found: dict[str, str] = self._worker.call(
            "schemes",
            folder=self._worker.model_folder(request.geometry),
            capability=request.capability,
            of_draft=request.draft,
        )
        return found


def _outcome(fields: dict[str, Any]) -> PlanOutcome:
    axes = fields.pop("axes", None)
    shaped = None if axes is None else {name: Axis(*axis) for name, axis in axes.items()}
    built = {name: Axis(*axis) for name, axis in fields.pop("built", {}).items()}
    return PlanOutcome(axes=shaped, built=built, **fields)
