"""Layer `graph`: vLLM's attention decode, its MoE kernel, and both with the output projection between.

Each is captured and replayed in the worker that has the GPU: a graph there is bound to memory there. A replay sends the
buffers (of all graphs of its pool), canaries between them included, and fetches all of it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from conformance.errors import NotSupported, StackCrashed
from conformance.faults import graph_steps
from conformance.stacks.graph_protocol import AttendRequest, Buffers, LayerRequest, Step
from conformance.stacks.vllm.exchange import Exchange

if TYPE_CHECKING:
    from conformance.stacks.attention_protocol import AttentionCapabilities
    from conformance.stacks.protocols import MoeRequest
    from conformance.stacks.vllm.attention import VllmAttention
    from conformance.stacks.vllm.moe import VllmMoe, VllmMoeLayer
    from conformance.stacks.vllm.stack import VllmWorker

#: Of vLLM's own list (1, 2, 4, then multiples of 8) those that the MoE layer judges.
_SIZES = (1, 8, 16, 64)
_WORDS = "CUDA graphs in vLLM's worker, captured on a side stream after 3 warm-ups"


class _Graphs:
    """See graph_protocol.GraphRunner."""

    words = _WORDS
    sizes: tuple[int, ...] = _SIZES
    _there: There
    #: What the experts are warmed up for: 0 is the largest of `sizes`.
    _most = 0

    def every_size(self) -> tuple[int, ...]:
        """By vLLM's own rule, as a server with its defaults captures on a large GPU."""
        found = tuple(self._there.call("captured_sizes"))
        self._most = max(found)
        return found


class VllmAttentionGraphs(_Graphs):
    def __init__(self, worker: VllmWorker, kernel: VllmAttention):
        """Raises NotSupported where vLLM's attention runs on no GPU."""
        _on_a_gpu(kernel)
        self._there = There(worker)

    def open(self, request: AttendRequest) -> VllmGraphedLayer:
        return VllmGraphedLayer(self._there, self._there.call("open_attend", **_attending(request)))


class VllmMoeGraphs(_Graphs):
    def __init__(self, worker: VllmWorker, kernel: VllmMoe):
        """Raises NotSupported without a GPU."""
        kernel.capabilities()
        self._there, self._kernel = There(worker), kernel

    def open(self, request: MoeRequest) -> VllmGraphedLayer:
        layer, number = _experts(self._there, self._kernel, request, self._most or max(self.sizes))
        return VllmGraphedLayer(self._there, number, layer.close)


class VllmLayerGraphs(_Graphs):
    def __init__(self, worker: VllmWorker, attention: VllmAttention, moe: VllmMoe):
        """Raises NotSupported where vLLM's attention runs on no GPU, or its output projection does not run."""
        can = _on_a_gpu(attention)
        if "output" not in can.parts:
            raise NotSupported(f"a layer's graph needs vLLM's output projection: {'; '.join(can.notes)}")
        self._there, self._attention, self._moe = There(worker), attention, moe

    def open(self, request: LayerRequest) -> VllmGraphedLayer:
        output = self._attention.output(request.output)
        experts, warm = _experts(self._there, self._moe, request.moe, self._most or max(self.sizes))
        sessions = {"output": output.session, "session": experts.session}
        number = self._there.call("open_decoder", attend=_attending(request.attend), **sessions)

        def close() -> None:
            self._there.close("close_layer", warm, output.generation)
            experts.close()
            output.close()

        return VllmGraphedLayer(self._there, number, close)


def _on_a_gpu(attention: VllmAttention) -> AttentionCapabilities:
    """Raises NotSupported for a CPU's attention."""
    can = attention.capabilities()
    if can.device != "cuda":
        raise NotSupported("vLLM's attention runs on the CPU here: it captures no graphs of it")
    return can


def _attending(request: AttendRequest) -> dict[str, Any]:
    """As the worker's kernel takes it."""
    tokens = {"window_tokens": request.window_tokens, "compressed_tokens": request.entries_tokens}
    return {"scale": request.scale, **tokens}


def _experts(there: There, kernel: VllmMoe, request: MoeRequest, most: int) -> tuple[VllmMoeLayer, int]:
    """The experts' layer, and the number of its call over there, which has run at `most` tokens, the largest size."""
    layer = kernel.open(request)
    shape = most, min(request.experts, request.geometry.top_k)
    x = torch.zeros(shape[0], request.geometry.hidden_size, dtype=torch.bfloat16, device="cuda")
    routes = torch.zeros(shape, dtype=torch.int32, device="cuda"), torch.zeros(shape, device="cuda")
    largest = Buffers(x, *routes, torch.zeros_like(x))
    number: int = there.call("open_experts", largest._asdict(), session=layer.session)
    return layer, number


class There:
    """The worker's graphs, with buffers on both sides."""

    def __init__(self, worker: VllmWorker):
        self._worker, self._exchange = worker, Exchange(worker)

    @property
    def generation(self) -> int:
        """Of the worker: another one knows nothing of what was captured in this."""
        return self._worker.process.generation

    def call(self, part: str, written: dict[str, torch.Tensor] | None = None, /, **plain: Any) -> Any:
        """One part over there. `written` is sent with the memory round it, and all of that comes back."""
        return self._exchange.call("graph", {}, written or {}, part=part, **plain)

    def close(self, part: str, number: int, generation: int) -> None:
        """Nothing to do if its worker is gone."""
        if self.generation == generation and self._worker.process.alive:
            self.call(part, number=number)


class VllmGraphedLayer:
    """See graph_protocol.GraphedLayer."""

    def __init__(self, there: There, number: int, close: Callable[[], None] = lambda: None):
        """`number`: of the call over there; `close` gives back what it was made of."""
        self._there, self._number, self._close = there, number, close
        self._generation = there.generation
        self._pools: dict[int, list[VllmCaptured]] = {}

    def change(self, wrap: Callable[[Step], Step]) -> None:
        """Raises NotSupported for what is no function of graph_steps, which the worker has."""
        name = getattr(wrap, "__name__", "")
        if wrap is not getattr(graph_steps, name, None):
            raise NotSupported("the captured call is made in vLLM's own process: nothing can be put behind it here")
        self._there.call("change", layer=self._number, fault=name)

    def eager(self, buffers: Any) -> None:
        self._there.call("eager", buffers._asdict(), layer=self._number)

    def warm_up(self, buffers: Any) -> None:
        self._there.call("warm_up", buffers._asdict(), layer=self._number)

    def pool(self) -> int:
        number: int = self._there.call("open_pool")
        return number

    def capture(self, buffers: Any, pool: int | None = None) -> VllmCaptured:
        number = self._there.call("open_graph", buffers._asdict(), layer=self._number, pool=pool or 0)
        members = [] if pool is None else self._pools.setdefault(pool, [])
        return VllmCaptured(self._there, number, buffers, members)

    def held(self) -> int:
        count: int = self._there.call("held")
        return count

    def disturb(self) -> None:
        self._there.call("disturb")

    def close(self) -> None:
        self._there.close("close_layer", self._number, self._generation)
        self._close()


class VllmCaptured:
    #: What a CUDA graph cannot hold fails at capture, and is a refusal.
    incidents: tuple[str, ...] = ()

    def __init__(self, there: There, number: int, buffers: Any, members: list[VllmCaptured]):
        """`members`: the open graphs of its pool, which this one joins."""
        self._there, self._number, self._buffers, self._members = there, number, buffers, members
        self._generation = there.generation
        members.append(self)

    def replay(self) -> None:
        """Raises StackCrashed where the process that captured it is gone."""
        if self._there.generation != self._generation:
            raise StackCrashed("the worker that captured this graph has ended; capture it again")
        order = [self, *(one for one in self._members if one is not self)]
        tensors = {
            f"{index}.{name}": tensor
            for index, one in enumerate(order)
            for name, tensor in one._buffers._asdict().items()
        }
        self._there.call("replay", tensors, numbers=[one._number for one in order])

    def close(self) -> None:
        if self in self._members:
            self._members.remove(self)
            self._there.close("close_graph", self._number, self._generation)
