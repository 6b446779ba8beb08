"""Tensors to and from a vLLM worker: through one shared buffer that grows, pinned on both sides where a driver allows.

A tensor that the worker writes travels with the whole memory that it was cut from, there and back, so that what lies
beside it is really beside it over there.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from conformance.stacks.shared import SharedBuffer

if TYPE_CHECKING:
    from conformance.stacks.vllm.stack import VllmWorker

#: Bytes: wider than any vector load, so that every tensor starts where an allocator would put it.
_ALIGNMENT = 256


class Exchange:
    """One a worker. What was lent lies at the buffer's start until the next call."""

    def __init__(self, worker: VllmWorker) -> None:
        self._worker = worker
        self._held: tuple[int, int, SharedBuffer] | None = None

    def buffer(self, nbytes: int) -> tuple[int, torch.Tensor]:
        """(number over there, at least that many shared bytes)."""
        process = self._worker.process
        held = self._held
        if held is None or held[0] != process.generation or held[2].nbytes < nbytes:
            if held:
                _unpin(held[2].tensor)
                if held[0] == process.generation:
                    process.call("detach", buffer=held[1])
            made = SharedBuffer(process.folder, f"exchange-{nbytes}", nbytes)
            try:
                number: int = process.call("attach", path=str(made.path), nbytes=made.mapped)
                process.call("pin", buffer=number)
            finally:
                made.unlink()
            _pin(made.tensor)
            held = self._held = process.generation, number, made
        return held[1], held[2].tensor

    def call(self, name: str, read: dict[str, torch.Tensor], written: dict[str, torch.Tensor], **plain: Any) -> Any:
        """One call over there. `read` and `written` (and read) arrive as its argument `lend`, by name."""
        memory: dict[tuple[int, int], tuple[int, torch.Tensor, bool]] = {}
        described, at = {}, 0
        for back, tensors in ((True, written), (False, read)):
            for label, tensor in tensors.items():
                tensor = tensor if back else tensor.contiguous()
                whole = _storage(tensor) if back else tensor.view(-1).view(torch.uint8)
                key = whole.data_ptr(), whole.numel()
                if key not in memory:
                    memory[key] = (at, whole, back)
                    at = -(-(at + whole.numel()) // _ALIGNMENT) * _ALIGNMENT
                start = tensor.storage_offset() if back else 0
                dtype = str(tensor.dtype).removeprefix("torch.")
                described[label] = [memory[key][0], dtype, list(tensor.shape), list(tensor.stride()), start]
        number, shared = self.buffer(max(at, 1))
        for start, whole, _ in memory.values():
            shared[start : start + whole.numel()].copy_(whole)
        spans = [[start, whole.numel(), back] for start, whole, back in memory.values()]
        lend = {"buffer": number, "spans": spans, "tensors": described}
        answer = self._worker.call(name, lend=lend, **plain)
        for start, whole, back in memory.values():
            if back:
                whole.copy_(shared[start : start + whole.numel()])
        return answer


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    """All the memory that a tensor is cut from, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _unpin(tensor: torch.Tensor) -> None:
    if torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):
            torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())


def _pin(tensor: torch.Tensor) -> None:
    """Page-lock it for fast copies; where the driver will not, copies are slower and nothing else changes."""
    if not torch.cuda.is_available():
        return
    with contextlib.suppress(RuntimeError):
        if int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0)):
            # the next launch reports that error once: not to the kernel under test
            torch.ones(1, device="cuda").add_(1)
