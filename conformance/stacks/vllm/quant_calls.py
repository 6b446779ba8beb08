"""What vLLM's own NVFP4 code would call on a GPU that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.stacks.protocols import MoeCall, TensorInfo
from conformance.stacks.quant_calls_protocol import QuantCallRequest

if TYPE_CHECKING:
    from conformance.stacks.vllm.stack import VllmWorker


def calls(worker: VllmWorker, request: QuantCallRequest) -> dict[str, list[MoeCall]]:
    """See quant_calls_protocol.QuantCalls."""
    told = worker.call("quant_calls", **request._asdict())
    return {
        name: [
            MoeCall(
                function,
                {argument: TensorInfo(dtype, tuple(shape), flat) for argument, (dtype, shape, flat) in tensors.items()},
                values,
                refused,
            )
            for function, tensors, values, refused in made
        ]
        for name, made in told.items()
    }
