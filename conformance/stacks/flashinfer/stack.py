"""The stack object (a kernel library: it neither plans nor loads): the FlashInfer of this interpreter on the first GPU.

It shares a process, and the GPU's memory, with the references; the gate judges it in a process of its own. Without a
GPU its calls can be bound to the installed FlashInfer, and no more.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from conformance.errors import NotSupported, StackMissing
from conformance.stacks.libraries.quantizer import LibraryQuantizer, LibraryWorker
from conformance.stacks.protocols import StackInfo, StackOptions

if TYPE_CHECKING:
    from conformance.stacks.attention_calls_protocol import CallRequest
    from conformance.stacks.compile.compiler import ToolchainCompiler
    from conformance.stacks.cuda_graphs import CudaAttentionGraphs, CudaGraphs
    from conformance.stacks.flashinfer.attention import FlashInferAttention
    from conformance.stacks.flashinfer.gemm import FlashInferGemm, FlashInferLinear
    from conformance.stacks.flashinfer.moe import FlashInferMoe
    from conformance.stacks.flashinfer.preparation import FlashInferPreparation
    from conformance.stacks.flashinfer.quantizer import FlashInferQuantizer
    from conformance.stacks.protocols import MoeCall, MoeRequest
    from conformance.stacks.quant_calls_protocol import QuantCallRequest
#: The library has no list of its own: the batch sizes that the MoE layer judges.
_GRAPH_SIZES = (1, 8, 16, 64)


class FlashInferStack:
    name = "flashinfer"

    def __init__(self, options: StackOptions | None = None) -> None:
        self._options = options or StackOptions()
        self._compiler: ToolchainCompiler | None = None
        self._worker = LibraryWorker("flashinfer", self._options)
        self._quantizer = LibraryQuantizer("flashinfer", "--python", self._worker)

    def info(self) -> StackInfo:
        """Raises StackMissing without FlashInfer or torch. With `--python`, that interpreter's quantisers."""
        if self._options.library_python:
            return self._of_another()

        found = _version()
        try:
            import torch
        except ImportError as error:
            raise StackMissing(f"torch is not importable in {sys.executable}: {error}") from None
        gpu, words = "none", "no CUDA GPU here: calls can be bound, and no kernel runs"
        if torch.cuda.is_available():
            gpu, (major, minor) = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
            words = f"capability {major}.{minor}, CUDA {torch.version.cuda}"
        return StackInfo(
            name=self.name,
            subject=self.name,
            version=found,
            python=sys.executable,
            identity={"torch": str(torch.__version__), "gpu": gpu},
            backends=["flashinfer_cutlass"],
            capabilities=["moe", "graph (moe; attention, not on SM90)", "attention (attend)"],
            notes=[words],
        )

    def moe(self) -> FlashInferMoe:
        """Raises StackMissing without a GPU."""
        import torch

        if not torch.cuda.is_available():
            raise StackMissing("flashinfer's kernels need a CUDA GPU, and torch sees none here")
        from conformance.stacks.flashinfer.moe import FlashInferMoe

        return FlashInferMoe()

    def preparation(self) -> FlashInferPreparation:
        from conformance.stacks.flashinfer.preparation import FlashInferPreparation

        return FlashInferPreparation()

    def graph(self) -> CudaGraphs:
        """Raises StackMissing without a GPU."""
        from conformance.stacks.cuda_graphs import CudaGraphs

        return CudaGraphs(self.moe(), _GRAPH_SIZES)

    def attention(self) -> FlashInferAttention:
        """Raises StackMissing without a GPU."""
        import torch

        if not torch.cuda.is_available():
            raise StackMissing("flashinfer's kernels need a CUDA GPU, and torch sees none here")
        from conformance.stacks.flashinfer.attention import FlashInferAttention

        return FlashInferAttention()

    def attention_graph(self) -> CudaAttentionGraphs:
        """Raises StackMissing without a GPU, NotSupported on SM90, whose MLA plans each call on the host."""
        from conformance.stacks.cuda_graphs import CudaAttentionGraphs
        from conformance.stacks.flashinfer.attention import plans_on_host

        kernel = self.attention()
        if plans_on_host():
            raise NotSupported("FlashInfer's MLA of SM90 plans each call on the host: such a call cannot be captured")
        return CudaAttentionGraphs(kernel.attend, _GRAPH_SIZES)

    def attention_calls(self, request: CallRequest) -> list[MoeCall]:
        from conformance.stacks.flashinfer.attention import calls

        return calls(request)

    def moe_calls(self, request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int) -> list[MoeCall]:
        from conformance.stacks.flashinfer.moe import calls

        return calls(request, capability, tokens, slots)

    def quant_calls(self, request: QuantCallRequest) -> dict[str, list[MoeCall]]:
        """Raises StackMissing without FlashInfer in the harness's own interpreter."""
        _version()
        from conformance.stacks.flashinfer.quantised import calls

        return calls(request)

    def compiler(self) -> ToolchainCompiler:
        if self._compiler is None:
            from conformance.stacks.compile.compiler import ToolchainCompiler

            self._compiler = ToolchainCompiler(None)
        return self._compiler

    def quantizer(self) -> LibraryQuantizer | FlashInferQuantizer:
        """On a GPU its kernels. Without one, or with `--python`, the library's references in PyTorch, in a worker."""
        if self._options.library_python or not _gpu():
            return self._quantizer
        from conformance.stacks.flashinfer.quantizer import FlashInferQuantizer

        return FlashInferQuantizer()

    def gemm(self) -> FlashInferGemm:
        """Raises StackMissing without a GPU, NotSupported below SM100; so does the next."""
        _needs_blackwell("NVFP4's grouped product")
        from conformance.stacks.flashinfer.gemm import FlashInferGemm

        return FlashInferGemm()

    def linear(self) -> FlashInferLinear:
        _needs_blackwell("NVFP4's product")
        from conformance.stacks.flashinfer.gemm import FlashInferLinear

        return FlashInferLinear()

    def _of_another(self) -> StackInfo:
        told = self._quantizer.opened()
        return StackInfo(
            name=self.name,
            subject=self.name,
            version=told["version"],
            python=told["python"],
            identity=told["identity"],
            capabilities=["quant"],
            notes=[told["capabilities"]["runs"]],
        )

    def close(self) -> None:
        self._worker.close()
        if self._compiler is not None:
            self._compiler.close()


def _gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _needs_blackwell(what: str) -> None:
    import torch

    if not torch.cuda.is_available():
        raise StackMissing("flashinfer's kernels need a CUDA GPU, and torch sees none here")
    major, minor = torch.cuda.get_device_capability()
    if major not in (10, 12):
        raise NotSupported(f"FlashInfer has {what} for 10.x and 12.x; this GPU is {major}.{minor}")


def _version() -> str:
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        pass
    try:
        import flashinfer
    except Exception as error:
        raise StackMissing(
            f"flashinfer is not importable in {sys.executable}: {type(error).__name__}: {error}; pip install "
            "flashinfer-python there"
        ) from None
    return str(getattr(flashinfer, "__version__", "unknown"))
