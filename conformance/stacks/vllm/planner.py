"""Layer `plan`: ask the worker, and give its answer the protocol's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformance.stacks.protocols import Axis, PlanOutcome, PlanRequest

if TYPE_CHECKING:
    from conformance.stacks.vllm.stack import VllmWorker


class VllmPlanner:
    """See protocols.PlanBuilder. Under `force` the outcome stays vLLM's own; only the axes are forced."""

    def __init__(self, worker: VllmWorker) -> None:
        self._worker = worker

    def plan(self, request: PlanRequest) -> PlanOutcome:
        fields: dict[str, Any] = self._worker.call(
            "plan",
            folder=self._worker.model_folder(request.geometry),
            tp=request.tp,
            capability=request.capability,
            attention=request.attention,
            moe=request.moe,
            force=request.force,
        )
        axes = fields.pop("axes", None)
        shaped = None if axes is None else {name: Axis(*axis) for name, axis in axes.items()}
        built = {name: Axis(*axis) for name, axis in fields.pop("built", {}).items()}
        return PlanOutcome(axes=shaped, built=built, **fields)
