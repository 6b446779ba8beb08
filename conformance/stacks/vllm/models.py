"""Layer `loader`, whole models: one rank's model in the worker; parameters are read through one shared buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from conformance.errors import StackCrashed
from conformance.stacks.model_protocol import Coded, FromFile, ModelInfo, ModelRequest, Stored
from conformance.stacks.shared import SharedBuffer
from conformance.stacks.vllm import names

if TYPE_CHECKING:
    import torch

    from conformance.stacks.vllm.stack import VllmWorker

_EXCHANGE = 32 << 20


class VllmModelLoader:
    """See model_protocol.ModelLoader."""

    def __init__(self, worker: VllmWorker) -> None:
        self._worker = worker

    def open_model(self, request: ModelRequest) -> VllmModel:
        fields: dict[str, Any] = self._worker.call(
            "open_model",
            folder=self._worker.model_folder(request.geometry),
            tp=request.tp,
            rank=request.rank,
            backend=request.backend,
            capability=request.capability,
            attention=request.attention,
            force=request.force,
            layers=request.layers,
            experts_built=request.experts,
            draft=request.draft,
        )
        session = fields.pop("session")
        parameters = {n: Stored(dtype, tuple(shape)) for n, (shape, dtype) in fields.pop("parameters").items()}
        homes = names.homes(request.names, parameters, request.geometry.layers)
        return VllmModel(self._worker, session, ModelInfo(parameters=parameters, homes=homes, **fields))


class VllmModel:
    """See model_protocol.WholeModel. Lives as long as the worker it was opened in."""

    def __init__(self, worker: VllmWorker, session: int, info: ModelInfo) -> None:
        self.info = info
        self._worker, self._session = worker, session
        self._generation = worker.process.generation
        self._buffer = SharedBuffer(worker.process.folder, f"model-exchange-{session}", _EXCHANGE)
        try:
            self._number: int = self._call("attach", path=str(self._buffer.path), nbytes=self._buffer.mapped)
        finally:
            self._buffer.unlink()

    def fill(self, value: int) -> None:
        self._call("fill_model", session=self._session, value=value)

    def load(self, tensors: list[Coded]) -> None:
        self._call("load_model", session=self._session, tensors=[list(msgspec.structs.astuple(t)) for t in tensors])

    def load_files(self, tensors: list[FromFile]) -> None:
        self._call("load_files", session=self._session, tensors=[list(msgspec.structs.astuple(t)) for t in tensors])

    def read(self, parameter: str, first: int, last: int) -> torch.Tensor:
        if last - first > _EXCHANGE:
            raise ValueError(f"{last - first} bytes asked for; at most {_EXCHANGE} are read at a time")
        where = {"parameter": parameter, "first": first, "last": last}
        self._call("read_model", session=self._session, buffer=self._number, **where)
        return self._buffer.tensor[: last - first]

    def close(self) -> None:
        """Free the model over there. Nothing to do if its worker is gone."""
        if self._worker.process.generation == self._generation and self._worker.process.alive:
            self._call("detach", buffer=self._number)
            self._call("close_model", session=self._session)

    def _call(self, name: str, **arguments: Any) -> Any:
        process = self._worker.process
        if process.generation != self._generation or not process.alive:
            raise StackCrashed("the worker that this model was opened in has ended; open the model again")
        return process.call(name, **arguments)
