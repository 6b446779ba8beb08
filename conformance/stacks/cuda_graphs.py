"""CUDA graphs of kernels whose calls may be captured: for stacks that run in the harness's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from conformance.errors import StackCrashed, StackError, StackRefused
from conformance.stacks.attention_protocol import AttendCall
from conformance.stacks.graph_protocol import AttendRequest, Buffers, Step
from conformance.stacks.graphed_calls import attend_call
from conformance.stacks.protocols import MoeKernel, MoeRequest

_WARM_UPS = 3
_DISTURBING_BYTES = 1 << 28


WORDS = f"CUDA graphs of torch {torch.__version__}, captured on a side stream after {_WARM_UPS} warm-ups"


class CudaGraphs:
    """Of a MoE kernel: see graph_protocol.GraphRunner."""

    words = WORDS

    def __init__(self, kernel: MoeKernel, sizes: tuple[int, ...]):
        self._kernel, self.sizes = kernel, sizes

    def open(self, request: MoeRequest) -> CudaGraphedLayer:
        layer = self._kernel.open(request)
        tactic = 0 if self._kernel.capabilities().pins_tactics and layer.tactics() else None

        def run(buffers: Buffers) -> None:
            layer.run(*buffers, tactic)

        return CudaGraphedLayer(run, layer.close)


class CudaAttentionGraphs:
    """Of attention decode, by an AttentionKernel's `attend`: see graph_protocol.GraphRunner."""

    words = WORDS

    def __init__(self, attend: Callable[[AttendCall, torch.Tensor], None], sizes: tuple[int, ...]):
        self._attend, self.sizes = attend, sizes

    def open(self, request: AttendRequest) -> CudaGraphedLayer:
        return CudaGraphedLayer(lambda buffers: self._attend(*attend_call(request, buffers)))


class CudaGraphedLayer:
    def __init__(self, run: Callable[[Any], None], close: Callable[[], None] = lambda: None):
        """`run` is the call; it must not wait for the device while that captures."""
        self._close = close
        self._stream = torch.cuda.Stream()
        self._step = run

    def change(self, wrap: Callable[[Step], Step]) -> None:
        self._step = wrap(self._step)

    def eager(self, buffers: Any) -> None:
        self._step(buffers)
        torch.cuda.synchronize()

    def warm_up(self, buffers: Any) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                self._step(buffers)
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(self, buffers: Any, pool: Any = None) -> CudaCaptured:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                self._step(buffers)
        except (StackCrashed, StackRefused, RuntimeError) as error:
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()
            words = " ".join(str(error).split())[:400]
            raise StackRefused(f"the call of {len(buffers[0])} tokens cannot be captured: {words}") from error
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
        self._close()


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
