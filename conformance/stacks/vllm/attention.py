"""Layer `attention`: the kernels of vLLM's own platform, in a worker that sees what this machine has.

On its CPU platform the real modules of vLLM's CPU attention; on a GPU of SM90 FlashMLA, as vLLM calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from conformance.errors import NotSupported, StackCrashed
from conformance.stacks.attention_calls_protocol import ENTRIES, WINDOW, CallRequest
from conformance.stacks.attention_protocol import (
    AttendCall,
    AttentionCapabilities,
    CompressorRequest,
    OutputRequest,
    Pages,
    SelectCall,
    Sparse,
    StepCall,
)
from conformance.stacks.protocols import MoeCall, TensorInfo
from conformance.stacks.vllm.exchange import Exchange

if TYPE_CHECKING:
    from conformance.geometry import Geometry
    from conformance.stacks.vllm.stack import VllmWorker

Tensors = dict[str, torch.Tensor]


class VllmAttention:
    """See attention_protocol.AttentionKernel."""

    def __init__(self, worker: VllmWorker) -> None:
        self._worker = worker
        self._exchange = Exchange(worker)
        self._told: tuple[int, AttentionCapabilities] | None = None

    def capabilities(self) -> AttentionCapabilities:
        """Raises NotSupported where this vLLM has no attention that is driven here, or the harness's torch no GPU."""
        generation = self._worker.process.generation
        if self._told is None or self._told[0] != generation:
            told = msgspec.convert(self._worker.call("describe_attention"), AttentionCapabilities, strict=False)
            if told.device == "cuda" and not torch.cuda.is_available():
                raise NotSupported("vLLM sees a GPU here and the harness's own torch does not: references run on it")
            self._told = self._worker.process.generation, told
        return self._told[1]

    def padded(self, heads: int) -> int:
        found: int = self._worker.call("pad_heads", heads=heads)
        return found

    def table(self, geometry: Geometry, ratio: int, positions: int) -> torch.Tensor:
        out = torch.full((positions, 64), torch.nan, device=self.capabilities().device)
        self.call("table", {}, {"out": out}, config=geometry.config, ratio=ratio)
        return out

    def queries(self, q: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, eps: float) -> torch.Tensor:
        out = torch.full((len(q), self.padded(q.shape[1]), q.shape[2]), torch.nan, dtype=q.dtype, device=q.device)
        self.call("queries", {"q": q, "positions": positions, "table": table}, {"out": out}, eps=eps)
        return out

    def insert(
        self, kv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, pages: Pages, slots: torch.Tensor
    ) -> None:
        read = {"kv": kv, "positions": positions, "table": table, "slots": slots}
        self.call("insert", read, {"pages": pages.data}, tokens=pages.tokens)

    def attend(self, call: AttendCall, out: torch.Tensor) -> None:
        read = {"q": call.q, "sinks": call.sinks} | _sparse("window", call.window)
        if call.compressed is not None:
            read |= _sparse("compressed", call.compressed)
        self.call(
            "attend",
            read,
            {"out": out},
            scale=call.scale,
            phase=call.phase,
            window_tokens=call.window.pages.tokens,
            compressed_tokens=call.compressed.pages.tokens if call.compressed is not None else 0,
        )

    def step(self, call: StepCall, out: torch.Tensor) -> None:
        read = {name: getattr(call, name) for name in ("q", "sinks", "positions", "requests", "lengths")}
        read |= {"window": call.window_pages.data, "window_table": call.window_table}
        optional = {"compressed_table": call.compressed_table, "selected": call.selected}
        compressed = call.compressed_pages
        if compressed is not None:
            optional["compressed"] = compressed.data
        self.call(
            "step",
            read | {name: tensor for name, tensor in optional.items() if tensor is not None},
            {"out": out},
            scale=call.scale,
            window=call.window,
            window_tokens=call.window_pages.tokens,
            ratio=call.ratio,
            compressed_tokens=compressed.tokens if compressed is not None else 0,
        )

    def compressor(self, request: CompressorRequest) -> VllmCompressor:
        return VllmCompressor(self, self._worker, request)

    def select(self, call: SelectCall) -> torch.Tensor:
        out = torch.full((len(call.q), call.k), -2, dtype=torch.int32, device=call.q.device)
        read = {name: getattr(call, name) for name in ("q", "weights", "keys", "positions", "requests")}
        self.call("select", read, {"out": out}, k=call.k)
        return out

    def output(self, request: OutputRequest) -> VllmOutput:
        return VllmOutput(self, self._worker, request)

    @property
    def generation(self) -> int:
        """Of the worker: another one knows nothing of what was opened in this."""
        return self._worker.process.generation

    def close_session(self, part: str, session: int, generation: int) -> None:
        """Nothing to do if its worker is gone."""
        process = self._worker.process
        if process.generation == generation and process.alive:
            process.call("close_attention", part=part, session=session)

    def call(self, part: str, read: Tensors, written: Tensors, **plain: Any) -> Any:
        """One part over there; `written` is read too."""
        return self._exchange.call("attention", read, written, part=part, **plain)


class _Session:
    """What is open in the worker, by number."""

    def __init__(self, kernel: VllmAttention, worker: VllmWorker, part: str, read: Tensors, **plain: Any) -> None:
        self._kernel, self._worker, self._part = kernel, worker, part
        self.session: int = kernel.call(f"open_{part}", read, {}, **plain)
        self.generation = worker.process.generation

    def _run(self, read: Tensors, written: Tensors, **plain: Any) -> None:
        if self._worker.process.generation != self.generation:
            raise StackCrashed(f"the worker that this {self._part} was opened in has ended; open it again")
        self._kernel.call(f"run_{self._part}", read, written, session=self.session, **plain)

    def close(self) -> None:
        self._kernel.close_session(self._part, self.session, self.generation)


class VllmCompressor(_Session):
    """See attention_protocol.Compressor."""

    def __init__(self, kernel: VllmAttention, worker: VllmWorker, request: CompressorRequest) -> None:
        read = {"bias": request.bias, "norm": request.norm}
        plain = {"ratio": request.ratio, "eps": request.eps, "requests": request.requests}
        super().__init__(kernel, worker, "compressor", read, **plain)
        self._table = request.table

    def run(
        self,
        kv: torch.Tensor,
        gate: torch.Tensor,
        positions: torch.Tensor,
        requests: torch.Tensor,
        pages: Pages,
        slots: torch.Tensor,
    ) -> None:
        read = {"kv": kv, "gate": gate, "positions": positions, "requests": requests, "slots": slots}
        self._run(read | {"table": self._table}, {"pages": pages.data}, tokens=pages.tokens)


class VllmOutput(_Session):
    """See attention_protocol.OutputLayer."""

    def __init__(self, kernel: VllmAttention, worker: VllmWorker, request: OutputRequest) -> None:
        read = {name: getattr(request, name) for name in ("wo_a", "wo_a_scale", "wo_b", "wo_b_scale", "table")}
        plain = {"heads": request.heads, "groups": request.groups}
        super().__init__(kernel, worker, "output", read, config=request.geometry.config, **plain)

    def run(self, o: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> None:
        self._run({"o": o, "positions": positions}, {"out": out})


def _sparse(name: str, given: Sparse) -> Tensors:
    return {name: given.pages.data, f"{name}_slots": given.slots, f"{name}_lengths": given.lengths}


def calls(worker: VllmWorker, request: CallRequest) -> list[MoeCall]:
    """See attention_calls_protocol.AttentionCalls: what vLLM's own classes hand to their kernels. No GPU is needed."""
    told = worker.call("attention_calls", **request._asdict(), window=WINDOW, entries=ENTRIES)
    return [
        MoeCall(
            function,
            {name: TensorInfo(dtype, tuple(shape), flat) for name, (dtype, shape, flat) in tensors.items()},
            values,
            refused,
        )
        for function, tensors, values, refused in told
    ]
