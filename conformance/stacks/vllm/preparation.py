"""Layer `moe`, before any kernel runs: vLLM's post-load conversion in the worker; bytes travel through two buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from conformance import expected
from conformance.errors import StackCrashed
from conformance.stacks.prepare_protocol import Form, Prepared, PrepareInfo, PrepareRequest
from conformance.stacks.protocols import SHARDS, MoeCall, MoeRequest, ParameterInfo
from conformance.stacks.selection_protocol import Choice, SelectionRequest
from conformance.stacks.shared import SharedBuffer

if TYPE_CHECKING:
    import torch

    from conformance.stacks.vllm.stack import VllmWorker


class VllmPreparation:
    """See prepare_protocol.Preparation."""

    def __init__(self, worker: VllmWorker) -> None:
        self._worker = worker

    def open(self, request: PrepareRequest) -> VllmPrepared:
        fields: dict[str, Any] = self._worker.call(
            "open_prepared",
            folder=self._worker.model_folder(request.geometry),
            tp=request.tp,
            rank=request.rank,
            backend=request.backend,
            capability=request.capability,
            experts=request.experts,
            share=request.share,
        )
        session = fields.pop("session")
        loaded = {name: ParameterInfo(rows, cols, "uint8") for name, (rows, cols) in fields.pop("loaded").items()}
        return VllmPrepared(self._worker, session, PrepareInfo(loaded=loaded, **fields), request.experts)


class VllmPrepared:
    """See prepare_protocol.PreparedLayer. Lives as long as the worker it was opened in."""

    def __init__(self, worker: VllmWorker, session: int, info: PrepareInfo, experts: int) -> None:
        self.info = info
        self._worker, self._session, self._experts = worker, session, experts
        self._generation = worker.process.generation
        size = experts * sum(p.rows * p.cols for p in info.loaded.values())
        self._source, self._into = self._attach("source", size)
        self._target, self._out = self._attach("target", 2 * size)

    def convert(self, loaded: dict[str, torch.Tensor]) -> dict[str, Prepared]:
        start = 0
        for name in SHARDS:
            data = loaded[name]
            self._into.tensor[start : start + data.numel()].view(data.shape).copy_(data)
            start += data.numel()
        answer: dict[str, Any] = self._call("convert", source=self._source, target=self._target)
        done, start = {}, 0
        for name, (shape, dtype, contiguous, nbytes) in answer.items():
            data = self._out.tensor[start : start + nbytes].view(self._experts, -1)
            done[name] = Prepared(data, Form(tuple(shape), dtype, contiguous))
            start += nbytes
        return done

    def call(self, tokens: int, slots: int) -> MoeCall:
        """vLLM's call of FlashInfer's kernel for so many tokens and slots, recorded in place of being made."""
        return msgspec.convert(self._call("record_call", tokens=tokens, slots=slots), MoeCall)

    def close(self) -> None:
        """Free the layer over there. Nothing to do if its worker is gone."""
        if self._worker.process.generation == self._generation and self._worker.process.alive:
            for buffer in (self._source, self._target):
                self._worker.call("detach", buffer=buffer)
            self._call("close_prepared")

    def _call(self, name: str, **arguments: Any) -> Any:
        process = self._worker.process
        if process.generation != self._generation or not process.alive:
            raise StackCrashed("the worker that this layer was opened in has ended; open the layer again")
        return process.call(name, session=self._session, **arguments)

    def _attach(self, what: str, nbytes: int) -> tuple[int, SharedBuffer]:
        process = self._worker.process
        buffer = SharedBuffer(process.folder, f"prepared-{self._session}-{what}", nbytes)
        try:
            number: int = process.call("attach", path=str(buffer.path), nbytes=buffer.mapped)
        finally:
            buffer.unlink()
        return number, buffer


def calls(
    worker: VllmWorker, request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int
) -> list[MoeCall]:
    """See protocols.MoeCalls: the worker's own experts class, up to the library's function."""
    t = request
    share = expected.axes(t.geometry, t.tp)["routed"].per_rank
    wanted = PrepareRequest(t.geometry, t.tp, t.rank, t.backend, capability, t.experts, share)
    layer = VllmPreparation(worker).open(wanted)
    try:
        return [layer.call(tokens, slots)]
    finally:
        layer.close()


class VllmSelection:
    """See selection_protocol.Selection."""

    def __init__(self, worker: VllmWorker) -> None:
        self._worker = worker

    def choices(self, request: SelectionRequest) -> list[Choice]:
        found = self._worker.call(
            "choices",
            folder=self._worker.model_folder(request.geometry),
            tp=request.tp,
            share=request.share,
            capabilities=request.capabilities,
        )
        return msgspec.convert(found, list[Choice])
