"""CUDA graphs of a MoE kernel whose `run` may be captured: for stacks that run in the harness's own process."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from conformance.errors import StackCrashed, StackError, StackRefused
from conformance.stacks.graph_protocol import Buffers
from conformance.stacks.protocols import MoeKernel, MoeLayer, MoeRequest

_WARM_UPS = 3
_DISTURBING_BYTES = 1 << 28


class CudaGraphs:
    """See graph_protocol.GraphRunner."""

    def __init__(self, kernel: MoeKernel, sizes: tuple[int, ...]):
        self._kernel, self.sizes = kernel, sizes
        self.words = f"CUDA graphs of torch {torch.__version__}, captured on a side stream after {_WARM_UPS} warm-ups"

    def open(self, request: MoeRequest) -> CudaGraphedLayer:
        return CudaGraphedLayer(self._kernel.open(request), self._kernel.capabilities().pins_tactics)


class CudaGraphedLayer:
    def __init__(self, layer: MoeLayer, pins: bool):
        self._layer = layer
        self._tactic = 0 if pins and layer.tactics() else None
        self._stream = torch.cuda.Stream()
        self.step = self._run

    def _run(self, buffers: Buffers) -> None:
        self._layer.run(*buffers, self._tactic)

    def eager(self, buffers: Buffers) -> None:
        self.step(buffers)
        torch.cuda.synchronize()

    def warm_up(self, buffers: Buffers) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                self.step(buffers)
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(self, buffers: Buffers, pool: Any = None) -> CudaCaptured:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                self.step(buffers)
        except (StackCrashed, StackRefused, RuntimeError) as error:
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()
            words = " ".join(str(error).split())[:400]
            raise StackRefused(f"the call of {len(buffers.x)} tokens cannot be captured: {words}") from error
        return CudaCaptured(graph)

    def held(self) -> int:
        return torch.cuda.memory_allocated()

    def disturb(self) -> None:
        """Twice: a large block, and many small ones such as kernels take for their intermediates."""
        for _ in range(2):
            blocks = [torch.full((_DISTURBING_BYTES,), 255, dtype=torch.uint8, device="cuda")]
            blocks += [torch.full((1 << size,), 255, dtype=torch.uint8, device="cuda") for size in range(9, 25)]
            torch.cuda.synchronize()
            del blocks

    def close(self) -> None:
        self._layer.close()


class CudaCaptured:
    #: What a CUDA graph cannot hold fails at capture, and is a refusal.
    incidents: tuple[str, ...] = ()

    def __init__(self, graph: torch.cuda.CUDAGraph):
        self._graph: torch.cuda.CUDAGraph | None = graph

    def replay(self) -> None:
        assert self._graph is not None
        try:
            self._graph.replay()
            torch.cuda.synchronize()
        except StackError:
            raise
        except Exception as error:
            raise StackCrashed(f"replay: {type(error).__name__}: {' '.join(str(error).split())[:400]}") from error

    def close(self) -> None:
        """A graph is freed before what it was captured with: a process group cannot end while one holds it."""
        if self._graph is not None:
            torch.cuda.synchronize()
            self._graph.reset()
            self._graph = None
