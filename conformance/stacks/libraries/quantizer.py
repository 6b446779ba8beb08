"""A quantiser in a worker process of its own: tensors cross as bytes, with their strides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.errors import StackMissing
from conformance.stacks import interpreter
from conformance.stacks.process import Worker, WorkerSpec, sources
from conformance.stacks.protocols import StackOptions
from conformance.stacks.quant_protocol import Format, QuantCapabilities, Quantized, QuantizedWeight

if TYPE_CHECKING:
    import torch

WORKER = Path(__file__).with_name("worker")
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CACHE_ROOT": "{folder}/cache/vllm",
    "VLLM_CONFIG_ROOT": "{folder}/cache/vllm-config",
    "FLASHINFER_WORKSPACE_BASE": "{folder}/cache/flashinfer",
    "TRITON_CACHE_DIR": "{folder}/cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "{folder}/cache/inductor",
}


class LibraryWorker:
    """The process that a library is opened in, by the interpreter that `--python` names. Started by the first call."""

    def __init__(self, library: str, options: StackOptions) -> None:
        self._library, self._options = library, options
        self._worker: Worker | None = None

    def __call__(self) -> Worker:
        if self._worker is None:
            o = self._options
            self._worker = Worker(
                WorkerSpec(
                    name=f"quant_{self._library}",
                    python=interpreter.resolve(o.library_python, "--python"),
                    modules=sources(WORKER),
                    entry="calls",
                    path=interpreter.search_path([]),
                    environment=_ENVIRONMENT,
                    work_dir=o.work_dir,
                    call_timeout=o.call_timeout,
                    start_timeout=o.start_timeout,
                )
            )
        return self._worker

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


class LibraryQuantizer:
    """See quant_protocol.Quantizer. `worker` gives the process that runs WORKER's modules; `option` is what chooses its
    interpreter, for messages."""

    #: Where its tensors live: known before a worker is started.
    device = "cpu"

    def __init__(self, library: str, option: str, worker: Callable[[], Worker]) -> None:
        self._library, self._option, self._process = library, option, worker
        self._told: dict[str, Any] = {}
        self._generation = -1

    def opened(self) -> dict[str, Any]:
        """version, python, identity, capabilities. Raises StackMissing, UsageError."""
        worker = self._process()
        if worker.generation != self._generation or not worker.alive:
            try:
                self._told = worker.call("open_library", library=self._library)
            except StackMissing as error:
                name = self._library.replace("_", "-")
                raise StackMissing(
                    f"{name} is not importable in {worker.spec.python}: {error}; pip install it there, "
                    f"or name another interpreter with {self._option}"
                ) from None
            self._generation = worker.generation
        return self._told

    def _call(self, method: str, *arguments: Any) -> Any:
        from conformance.stacks.libraries.worker import packing

        self.opened()
        answer = self._process().call("call_library", method=method, arguments=packing.packed(list(arguments)))
        return packing.unpacked(answer)

    def capabilities(self) -> QuantCapabilities:
        return msgspec.convert(self.opened()["capabilities"], QuantCapabilities)

    def encode(self, code: str, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._call("encode", code, x)
        return found

    def decode(self, code: str, codes: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._call("decode", code, codes)
        return found

    def pack(self, codes: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._call("pack", codes)
        return found

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._call("unpack", packed)
        return found

    def quantize(self, format: Format, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
        return Quantized(*self._call("quantize", format, x, global_scale))

    def dequantize(self, format: Format, q: Quantized) -> torch.Tensor:
        found: torch.Tensor = self._call("dequantize", format, q.codes, q.scales, float(q.global_scale))
        return found

    def quantize_weight(self, format: Format, w: torch.Tensor) -> QuantizedWeight:
        return QuantizedWeight(*self._call("quantize_weight", format, w))

    def swizzle(self, scales: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._call("swizzle", scales)
        return found

    def unswizzle(self, flat: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        found: torch.Tensor = self._call("unswizzle", flat, rows, columns)
        return found

    def groups(self, scales: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        flat, starts = self._call("groups", scales)
        return flat, starts

    def experts(self, scales: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._call("experts", scales)
        return found

    def interleave(
        self, codes: torch.Tensor, scales: torch.Tensor, granularity: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        woven = self._call("interleave", codes, scales, granularity)
        return woven[0], woven[1]

    def deinterleave(self, h: torch.Tensor, granularity: int) -> torch.Tensor:
        found: torch.Tensor = self._call("deinterleave", h, granularity)
        return found

    def k_major(self, codes: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._call("k_major", codes)
        return found
