"""Layer `loader`: one rank's real RoutedExperts in the worker; bytes travel through shared buffers."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from conformance.errors import AdapterError, StackCrashed
from conformance.stacks.protocols import ExpertsInfo, ExpertsRequest, ParameterInfo, Sources
from conformance.stacks.shared import FilePart, SharedBuffer

if TYPE_CHECKING:
    import torch

    from conformance.stacks.vllm.stack import VllmWorker


_ALIGNMENT = 64
#: (generation of the worker, number over there) -> buffer: of all layers that are open.
Buffers = dict[tuple[int, int], SharedBuffer | FilePart]


class VllmLoader:
    """See protocols.ShardLoader."""

    def __init__(self, worker: VllmWorker) -> None:
        self._worker = worker
        self._buffers: Buffers = {}

    def open_experts(self, request: ExpertsRequest) -> VllmExperts:
        fields: dict[str, Any] = self._worker.call(
            "open_experts",
            folder=self._worker.model_folder(request.geometry),
            tp=request.tp,
            rank=request.rank,
            backend=request.backend,
            experts=request.experts,
            capability=request.capability,
            attention=request.attention,
            force=request.force,
            attributes=request.attributes,
        )
        session = fields.pop("session")
        shapes = {name: ParameterInfo(*shape) for name, shape in fields.pop("parameters").items()}
        return VllmExperts(self._worker, session, ExpertsInfo(parameters=shapes, **fields), self._buffers)


class VllmExperts:
    """See protocols.ExpertsLayer. Lives as long as the worker it was opened in."""

    def __init__(self, worker: VllmWorker, session: int, info: ExpertsInfo, shared: Buffers) -> None:
        self.info = info
        self._worker = worker
        self._session = session
        self._generation = worker.process.generation
        self._buffers: dict[int, SharedBuffer] = {}
        self._shared = shared
        self._exchange, self._out = self._attach(max(p.rows * p.cols for p in info.parameters.values()))
        #: Where the parameters live once `load_all` has been called, each in so many bytes.
        self._home: tuple[int, SharedBuffer] | None = None
        self._sizes = {name: -(-p.rows * p.cols // _ALIGNMENT) * _ALIGNMENT for name, p in info.parameters.items()}

    def allocate(self, nbytes: int) -> torch.Tensor:
        return self._attach(nbytes)[1].tensor

    def share(self, part: FilePart) -> None:
        process = self._worker.process
        number = process.call("attach_file", path=str(part.path), start=part.start, nbytes=part.nbytes)
        self._shared[process.generation, number] = part

    def unshare(self, part: FilePart) -> None:
        process = self._worker.process
        for key in [key for key, held in self._shared.items() if held is part]:
            del self._shared[key]
            if process.alive and process.generation == key[0]:
                process.call("detach", buffer=key[1])

    def initial(self, parameter: str, expert: int) -> torch.Tensor:
        del expert  # all experts of a parameter are one tensor, constructed in one go
        self._call("initial", parameter=parameter, buffer=self._exchange)
        return self._view(parameter).clone()

    def fill(self, parameter: str, value: int) -> None:
        self._call("fill", parameter=parameter, value=value)

    def load(self, parameter: str, shard: str, expert: int, source: torch.Tensor) -> None:
        buffer, offset = self._locate(source)
        rows, cols = source.shape
        self._call(
            "load",
            parameter=parameter,
            shard=shard,
            expert=expert,
            buffer=buffer,
            offset=offset,
            rows=rows,
            cols=cols,
        )

    def load_all(self, sources: Sources) -> dict[str, torch.Tensor]:
        """See protocols.LoadsAll: one call, and no byte is copied but by the loader itself."""
        if self._home is None:
            self._home = self._attach(sum(self._sizes.values()))
        number, buffer = self._home
        loads = [
            [parameter, shard, *self._locate(source), *source.shape]
            for parameter, shards in sources.items()
            for shard, source in shards.items()
        ]
        starts = dict(zip(self._sizes, accumulate(self._sizes.values(), initial=0), strict=False))
        places = [(parameter, starts[parameter]) for parameter in sources]
        self._call("load_all", loads=json.dumps(loads), places=json.dumps(places), buffer=number)
        return {parameter: self._view(parameter, buffer, start) for parameter, start in places}

    def read(self, parameter: str, expert: int) -> torch.Tensor:
        self._call("read", parameter=parameter, expert=expert, buffer=self._exchange)
        return self._view(parameter)

    def write(self, parameter: str, expert: int, data: torch.Tensor) -> None:
        self._view(parameter).copy_(data)
        self._call("write", parameter=parameter, expert=expert, buffer=self._exchange)

    def close(self) -> None:
        """Free the layer over there. Nothing to do if its worker is gone."""
        if self._worker.process.generation == self._generation and self._worker.process.alive:
            for buffer in self._buffers:
                self._worker.call("detach", buffer=buffer)
            self._call("close")
        for buffer in self._buffers:
            self._shared.pop((self._generation, buffer), None)
        self._buffers.clear()

    def _call(self, name: str, **arguments: Any) -> Any:
        process = self._worker.process
        if process.generation != self._generation or not process.alive:
            raise StackCrashed("the worker that this layer was opened in has ended; open the layer again")
        return process.call(name, session=self._session, **arguments)

    def _attach(self, nbytes: int) -> tuple[int, SharedBuffer]:
        process = self._worker.process
        buffer = SharedBuffer(process.folder, f"buffer-{self._session}-{len(self._buffers)}", nbytes)
        try:
            number: int = process.call("attach", path=str(buffer.path), nbytes=buffer.mapped)
        finally:
            buffer.unlink()
        self._buffers[number] = self._shared[self._generation, number] = buffer
        return number, buffer

    def _view(self, parameter: str, buffer: SharedBuffer | None = None, start: int = 0) -> torch.Tensor:
        shape = self.info.parameters[parameter]
        whole = (buffer or self._out).tensor
        return whole[start : start + shape.rows * shape.cols].view(shape.rows, shape.cols)

    def _locate(self, source: torch.Tensor) -> tuple[int, int]:
        """(buffer number, byte offset) of a source. Raises AdapterError if `allocate` did not hand it out."""
        if source.dim() == 2 and source.is_contiguous() and source.element_size() == 1:
            for (generation, number), buffer in list(self._shared.items()):  # threads load other ranks
                offset = buffer.offset(source)
                if offset is not None and generation == self._generation:
                    return number, offset
        raise AdapterError(
            f"a source is a contiguous (rows, bytes) view into allocate()'s buffer; got {tuple(source.shape)} "
            f"{source.dtype} from elsewhere"
        )
