"""Layer `graph`: vLLM's attention decode, captured and replayed in the worker that sees the GPU.

A graph there is bound to memory there. A replay sends the buffers (of all graphs of its pool), canaries between them
included, and fetches all of it back.
"""

from __future__ import annotations

from typing import Any

from conformance.errors import NotSupported, StackCrashed
from conformance.stacks.graph_protocol import AttendBuffers, AttendRequest
from conformance.stacks.graphed_calls import attend_call
from conformance.stacks.vllm.attention import Tensors, VllmAttention

#: Of vLLM's own list (1, 2, 4, then multiples of 8) those that the MoE layer judges.
_SIZES = (1, 8, 16, 64)


class VllmAttentionGraphs:
    """See graph_protocol.GraphRunner."""

    sizes = _SIZES
    words = "CUDA graphs in vLLM's worker, captured on a side stream after 3 warm-ups"

    def __init__(self, kernel: VllmAttention):
        """Raises NotSupported where vLLM's attention runs on no GPU."""
        if kernel.capabilities().device != "cuda":
            raise NotSupported("vLLM's attention runs on the CPU here: it captures no graphs of it")
        self._kernel = kernel

    def open(self, request: AttendRequest) -> VllmGraphedAttention:
        return VllmGraphedAttention(self._kernel, request)


class VllmGraphedAttention:
    """See graph_protocol.GraphedLayer."""

    def __init__(self, kernel: VllmAttention, request: AttendRequest):
        self.kernel, self._request = kernel, request
        self._pools: dict[int, list[VllmCaptured]] = {}

    @property
    def step(self) -> Any:
        """Raises NotSupported: a fault cannot be planted in it."""
        raise NotSupported("the captured call is made in vLLM's own process: it cannot be replaced from here")

    @step.setter
    def step(self, step: Any) -> None:
        raise NotSupported("the captured call is made in vLLM's own process: it cannot be replaced from here")

    def eager(self, buffers: AttendBuffers) -> None:
        self.kernel.attend(*attend_call(self._request, buffers))

    def warm_up(self, buffers: AttendBuffers) -> None:
        self.kernel.call("warm_up", {}, _named(buffers), **self._plain())

    def pool(self) -> int:
        number: int = self.kernel.call("open_pool", {}, {})
        return number

    def capture(self, buffers: AttendBuffers, pool: int | None = None) -> VllmCaptured:
        number = self.kernel.call("open_graph", {}, _named(buffers), pool=pool or 0, **self._plain())
        members = [] if pool is None else self._pools.setdefault(pool, [])
        return VllmCaptured(self.kernel, number, buffers, members)

    def _plain(self) -> dict[str, Any]:
        r = self._request
        return {"scale": r.scale, "window_tokens": r.window_tokens, "compressed_tokens": r.entries_tokens}

    def held(self) -> int:
        count: int = self.kernel.call("held", {}, {})
        return count

    def disturb(self) -> None:
        self.kernel.call("disturb", {}, {})

    def close(self) -> None:
        pass


class VllmCaptured:
    #: What a CUDA graph cannot hold fails at capture, and is a refusal.
    incidents: tuple[str, ...] = ()

    def __init__(self, kernel: VllmAttention, number: int, buffers: AttendBuffers, members: list[VllmCaptured]):
        """`members`: the open graphs of its pool, which this one joins."""
        self._kernel, self._number, self._buffers, self._members = kernel, number, buffers, members
        self._generation = kernel.generation
        members.append(self)

    def replay(self) -> None:
        """Raises StackCrashed where the process that captured it is gone."""
        if self._kernel.generation != self._generation:
            raise StackCrashed("the worker that captured this graph has ended; capture it again")
        order = [self, *(one for one in self._members if one is not self)]
        tensors = {
            f"{index}.{name}": tensor
            for index, one in enumerate(order)
            for name, tensor in _named(one._buffers).items()
        }
        self._kernel.call("replay", {}, tensors, numbers=[one._number for one in order])

    def close(self) -> None:
        if self in self._members:
            self._members.remove(self)
            self._kernel.close_session("graph", self._number, self._generation)


def _named(buffers: AttendBuffers) -> Tensors:
    """By the worker's names."""
    return {name.replace("entries", "compressed"): tensor for name, tensor in buffers._asdict().items()}
