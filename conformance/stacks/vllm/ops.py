"""vLLM's custom operators: measured in vLLM's own process, where they are registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformance.errors import NotSupported
from conformance.faults import ops as faults
from conformance.stacks.op_protocol import Listed

if TYPE_CHECKING:
    from conformance.faults.ops import OpFault
    from conformance.stacks.vllm.stack import VllmWorker


def listed(worker: VllmWorker) -> Listed:
    """Raises NotSupported where none of vLLM's can be called."""
    told = worker.call("describe_ops")
    ops = [VllmOp(worker, name, fake, told["library"]) for name, fake in told["operators"]]
    return Listed(ops, told["notes"], told["refused"], told["device"])


class VllmOp:
    """See op_protocol.JudgedOp."""

    batches = (8, 5)
    #: vLLM's layers are found by name, in a forward context: none by number.
    runners = None

    def __init__(self, worker: VllmWorker, name: str, fake: bool, library: str, fault: str = "") -> None:
        """`fault`: one of conformance.faults.ops, which the worker plants."""
        self._worker, self.name, self._fake, self.library, self._fault = worker, name, fake, library, fault

    def planted(self, fault: OpFault) -> VllmOp:
        """Raises NotSupported for a fault that is no part of conformance.faults.ops, which the worker has."""
        names = [name for name, known in vars(faults).items() if known is fault]
        if not names:
            raise NotSupported("vLLM's operators are in its own process: only a fault that is known there is planted")
        return VllmOp(self._worker, self.name, self._fake, self.library, names[0])

    def _measure(self, method: str, *arguments: Any) -> Any:
        sent = {"method": method, "name": self.name, "fault": self._fault, "arguments": list(arguments)}
        return self._worker.call("measure_op", **sent)

    def has_fake(self) -> bool:
        return bool(self._measure("has_fake")) if self._fault else self._fake

    def opcheck(self, test: str, batch: int) -> str:
        told: str = self._measure("opcheck", test, batch)
        return told

    def lasting(self, batch: int) -> tuple[bool, bool]:
        changed, shared = self._measure("lasting", batch)
        return changed, shared

    def untouched(self) -> list[str]:
        told: list[str] = self._measure("untouched")
        return told

    def explained(self) -> tuple[int, str, str]:
        breaks, reason, error = self._measure("explained")
        return breaks, reason, error

    def compiled(self) -> list[tuple[int, bool, str]]:
        return [(batch, equal, error) for batch, equal, error in self._measure("compiled")]

    def programs(self, batches: tuple[int, ...]) -> tuple[int, str]:
        made, error = self._measure("programs", list(batches))
        return made, error
