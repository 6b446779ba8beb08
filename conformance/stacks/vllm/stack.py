"""The stack object: one worker a run, shared by every layer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.errors import NotSupported, StackMissing
from conformance.faults import graph_steps
from conformance.faults import ops as op_faults
from conformance.geometry import Geometry
from conformance.stacks import interpreter, op_measures
from conformance.stacks.compile.compiler import ToolchainCompiler
from conformance.stacks.libraries.quantizer import WORKER as QUANTISERS
from conformance.stacks.libraries.quantizer import LibraryQuantizer
from conformance.stacks.process import Worker, WorkerSpec, sources
from conformance.stacks.protocols import MoeCall, MoeRequest, StackInfo, StackOptions
from conformance.stacks.vllm import preparation
from conformance.stacks.vllm.loader import VllmLoader
from conformance.stacks.vllm.models import VllmModelLoader
from conformance.stacks.vllm.planner import VllmPlanner
from conformance.stacks.vllm.preparation import VllmPreparation, VllmSelection

if TYPE_CHECKING:
    from conformance.stacks.attention_calls_protocol import CallRequest
    from conformance.stacks.op_protocol import Listed
    from conformance.stacks.protocols import MoeCall, MoeRequest
    from conformance.stacks.quant_calls_protocol import QuantCallRequest
    from conformance.stacks.vllm.attention import VllmAttention
    from conformance.stacks.vllm.engine import VllmEngine
    from conformance.stacks.vllm.graphs import VllmAttentionGraphs, VllmLayerGraphs, VllmMoeGraphs
    from conformance.stacks.vllm.hyper import VllmHyper
    from conformance.stacks.vllm.moe import VllmMoe
    from conformance.stacks.vllm.quantizer import VllmGpuQuantizer

_WORKER = Path(__file__).with_name("worker")
#: Faults that are planted in a worker's own calls, and what is measured on either side.
_SENT = {"graph_steps": graph_steps, "op_faults": op_faults, "op_measures": op_measures}
_PLANTED = {name: Path(str(module.__file__)).read_text() for name, module in _SENT.items()}
#: No network, no telemetry, no caches of the user's, no GPU: plan and loading are judged by pretended capabilities.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_CACHE_DIR": "{folder}/cache/inductor",
    "TRITON_CACHE_DIR": "{folder}/cache/triton",
    "FLASHINFER_WORKSPACE_BASE": "{folder}/cache/flashinfer",
    "VLLM_CACHE_ROOT": "{folder}/cache/vllm",
    "VLLM_CONFIG_ROOT": "{folder}/cache/vllm-config",
    "VLLM_HAS_FLASHINFER_CUBIN": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
#: Not for a worker that runs kernels.
_OF_THE_BLIND = ("CUDA_VISIBLE_DEVICES", "VLLM_HAS_FLASHINFER_CUBIN")


def _flashinfer_workspace() -> str:
    """Where the user's own FlashInfer keeps what it has built: read, never written."""
    return os.environ.get("FLASHINFER_WORKSPACE_BASE") or str(Path.home())


class VllmWorker:
    """The worker and what must be put in its folder. Started by the first call."""

    def __init__(self, options: StackOptions, gpu: bool = False) -> None:
        """`gpu`: one that sees the GPUs, as vLLM's own platform."""
        self._options = options
        self._gpu = gpu
        self._worker: Worker | None = None
        self._models: dict[tuple[int, bytes], str] = {}

    @property
    def process(self) -> Worker:
        """Raises UsageError for an interpreter or a checkout that is none."""
        if self._worker is None:
            o = self._options
            python = interpreter.resolve(o.python, "--vllm-python")
            source = interpreter.checkout(o.source, "vllm", "--vllm-source")
            self._worker = Worker(
                WorkerSpec(
                    name="vllm_gpu" if self._gpu else "vllm",
                    python=python,
                    modules=sources(QUANTISERS, _WORKER) | _PLANTED,
                    entry="gpu_api" if self._gpu else "api",
                    path=interpreter.search_path([source] if source else []),
                    environment=self._environment(),
                    work_dir=o.work_dir,
                    call_timeout=o.call_timeout,
                    start_timeout=o.start_timeout,
                )
            )
        return self._worker

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in _ENVIRONMENT.items() if not (self._gpu and k in _OF_THE_BLIND)}
        return kept | {"CONFORMANCE_FLASHINFER_WORKSPACE": _flashinfer_workspace()}

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Raises what Worker.call raises; StackMissing says which interpreter and what to do."""
        worker = self.process
        try:
            return worker.call(name, **arguments)
        except StackMissing as error:
            python = worker.spec.python
            raise StackMissing(
                f"vllm is not importable in {python}: {error}; install it with pip install vllm, "
                "or name another interpreter with --vllm-python"
            ) from None

    def model_folder(self, geometry: Geometry) -> str:
        """A folder over there that holds the geometry's config.json; one a geometry and worker."""
        worker = self.process
        text = msgspec.json.encode(geometry.config)
        folder = worker.folder / f"model-{len(self._models)}"
        key = (worker.generation, text)
        if key not in self._models:
            folder.mkdir()
            (folder / "config.json").write_bytes(text)
            self._models[key] = str(folder)
        return self._models[key]

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


class VllmStack:
    """`open_stack`'s answer: see protocols.Stack."""

    name = "vllm"

    def __init__(self, options: StackOptions) -> None:
        self._options = options
        self._worker = VllmWorker(options)
        self._gpu = VllmWorker(options, gpu=True)
        self._kernel: VllmMoe | None = None
        self._quantizer = LibraryQuantizer("vllm", "--vllm-python", lambda: self._worker.process)
        self._attention: VllmAttention | None = None
        self._ops: Listed | None = None
        self._compiler = ToolchainCompiler(options.python, options.work_dir, options.start_timeout)

    def info(self) -> StackInfo:
        """Who is under test; starts the worker. Raises StackMissing, UsageError."""
        found = self._worker.call("info")
        return msgspec.convert({"name": self.name, "subject": "vllm", **found}, StackInfo)

    def planner(self) -> VllmPlanner:
        return VllmPlanner(self._worker)

    def loader(self) -> VllmLoader:
        return VllmLoader(self._worker)

    def model_loader(self) -> VllmModelLoader:
        return VllmModelLoader(self._worker)

    def moe(self) -> VllmMoe:
        if self._kernel is None:
            from conformance.stacks.vllm.moe import VllmMoe

            self._kernel = VllmMoe(self._gpu, self._worker)
        return self._kernel

    def attention(self) -> VllmAttention:
        if self._attention is None:
            from conformance.stacks.vllm.attention import VllmAttention

            self._attention = VllmAttention(self._gpu)
        return self._attention

    def hyper(self) -> VllmHyper:
        """Raises NotSupported where this vLLM has none for its platform."""
        from conformance.stacks.vllm.hyper import VllmHyper

        return VllmHyper(self._gpu)

    def custom_ops(self) -> Listed:
        """Raises NotSupported where none of this vLLM's operators can be called here."""
        if self._ops is None:
            from conformance.stacks.vllm import ops

            self._ops = ops.listed(self._gpu)
        return self._ops

    def attention_graph(self) -> VllmAttentionGraphs:
        """Raises NotSupported where vLLM's attention runs on no GPU."""
        from conformance.stacks.vllm.graphs import VllmAttentionGraphs

        return VllmAttentionGraphs(self._gpu, self.attention())

    def layer_graph(self) -> VllmLayerGraphs:
        """Raises NotSupported where vLLM's attention and its projection run on no GPU."""
        from conformance.stacks.vllm.graphs import VllmLayerGraphs

        return VllmLayerGraphs(self._gpu, self.attention(), self.moe())

    def graph(self) -> VllmMoeGraphs:
        """Raises NotSupported without a GPU."""
        from conformance.stacks.vllm.graphs import VllmMoeGraphs

        return VllmMoeGraphs(self._gpu, self.moe())

    def attention_calls(self, request: CallRequest) -> list[MoeCall]:
        from conformance.stacks.vllm.attention import calls

        return calls(self._worker, request)

    def quant_calls(self, request: QuantCallRequest) -> dict[str, list[MoeCall]]:
        from conformance.stacks.vllm.quant_calls import calls

        return calls(self._worker, request)

    def moe_calls(self, request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int) -> list[MoeCall]:
        if request.backend == "marlin":
            return self.moe().calls(request, capability, tokens, slots)
        if request.backend == "flashinfer_cutedsl":
            raise NotSupported(
                "vLLM's NVFP4 MoE is not driven here; --stack moe=flashinfer binds FlashInfer's own calls"
            )
        return preparation.calls(self._worker, request, capability, tokens, slots)

    def preparation(self) -> VllmPreparation:
        return VllmPreparation(self._worker)

    def selection(self) -> VllmSelection:
        return VllmSelection(self._worker)

    def engine(self) -> VllmEngine:
        from conformance.stacks.vllm.engine import VllmEngine

        return VllmEngine(self._options, self._make_room)

    def compiler(self) -> ToolchainCompiler:
        return self._compiler

    def quantizer(self) -> LibraryQuantizer | VllmGpuQuantizer:
        """On SM100 and up its CUDA kernel; elsewhere its paths in PyTorch."""
        import torch

        if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 10:
            return self._quantizer
        from conformance.stacks.vllm.quantizer import VllmGpuQuantizer

        return VllmGpuQuantizer(self._gpu)

    def _make_room(self) -> None:
        """An engine needs the memory, of a GPU too, that earlier layers' workers hold; the next call starts them."""
        self._worker.close()
        self._gpu.close()

    def close(self) -> None:
        self._compiler.close()
        self._worker.close()
        self._gpu.close()
