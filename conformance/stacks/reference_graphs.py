"""The reference stack's graphs, simulated on a CPU with what makes real ones treacherous.

Capture runs the call once and records every operation with its tensors *by address* and its Python numbers *by value*.
Then it spoils what these operations made: a GPU only notes them, and nothing is there before the first replay.
Replay repeats the operations on that memory: whoever changed a buffer in place is followed, and whatever Python decided
at capture (a branch, a length, a number read off a tensor) stays as it was. Reading a tensor from Python, and data made
from Python lists, are noted as incidents: on a GPU they would be a host sync and a copy from host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conformance.stacks import reference_numerics as numerics
from conformance.stacks.attention_protocol import AttentionKernel
from conformance.stacks.graph_protocol import (
    AttendBuffers,
    AttendRequest,
    Buffers,
    LayerBuffers,
    LayerRequest,
    Step,
)
from conformance.stacks.graphed_calls import attend_call
from conformance.stacks.protocols import LoadedWeights, MoeRequest
from conformance.stacks.reference_moe import swiglu, swiglu_in_steps

_SIZES = (1, 2, 4, 8)
#: Attention is slower here.
_ATTENTION_SIZES = (1, 4)
#: By night: what vLLM's rule gives for 16 requests and fewer.
_EVERY = (1, 2, 4, 8, 16)
_WORDS = "graphs simulated on a CPU: operations recorded once, repeated over the same memory"
#: Operations whose result, or its shape, Python needs.
_SYNCS = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "_unique2", "unique_consecutive", "equal")
#: torch.distributed's own operations: they work in place, though their schemas do not say so, and are waited for.
_COLLECTIVE = "c10d"
_FROM_HOST = ("lift_fresh", "lift_fresh_copy", "lift")


class _Sized:
    words = _WORDS
    sizes: tuple[int, ...] = _ATTENTION_SIZES

    def every_size(self) -> tuple[int, ...]:
        return _EVERY


class ReferenceGraphs(_Sized):
    """See graph_protocol.GraphRunner."""

    sizes = _SIZES

    def __init__(self, scheme: str):
        self._scheme = scheme

    def open(self, request: MoeRequest) -> ReferenceGraphedLayer:
        return ReferenceGraphedLayer(_Experts(request, self._scheme))


class ReferenceAttentionGraphs(_Sized):
    """Of attention decode."""

    def __init__(self, kernel: AttentionKernel):
        self._kernel = kernel

    def open(self, request: AttendRequest) -> ReferenceGraphedLayer:
        return ReferenceGraphedLayer(lambda buffers: self._kernel.attend(*attend_call(request, buffers)))


class ReferenceLayerGraphs(_Sized):
    """Of attention decode, its output projection and the routed experts, one after the other."""

    def __init__(self, kernel: AttentionKernel, scheme: str):
        self._kernel, self._scheme = kernel, scheme

    def open(self, request: LayerRequest) -> ReferenceGraphedLayer:
        project, experts = self._kernel.output(request.output), _Experts(request.moe, self._scheme)

        def step(b: LayerBuffers) -> None:
            attended, x = torch.empty_like(b.q), torch.empty_like(b.out)
            self._kernel.attend(*attend_call(request.attend, AttendBuffers(*b[:8], attended)))
            project.run(attended, b.positions, x)
            experts(Buffers(x, b.ids, b.weights, b.out))

        return ReferenceGraphedLayer(step)


class ReferenceGraphedLayer:
    def __init__(self, step: Step):
        self._step: Step | None = step

    def change(self, wrap: Callable[[Step], Step]) -> None:
        assert self._step
        self._step = wrap(self._step)

    def eager(self, buffers: Any) -> None:
        self._call(buffers)

    def warm_up(self, buffers: Any) -> None:
        self._call(buffers)

    def pool(self) -> list[Any]:
        return []

    def capture(self, buffers: Any, pool: list[Any] | None = None) -> _Recorded:
        recorded = _Recorded()
        with recorded:
            self._call(buffers)
        if pool is not None:
            pool.append(recorded)
        return recorded

    def held(self) -> int:
        return 0

    def disturb(self) -> None:
        for size in range(9, 20):
            torch.full((1 << size,), 255, dtype=torch.uint8)

    def close(self) -> None:
        self._step = None

    def _call(self, buffers: Any) -> None:
        assert self._step
        self._step(buffers)


class _Experts:
    """Every expert on every token, so that no branch looks at the routes; then each slot takes its own."""

    def __init__(self, request: MoeRequest, scheme: str):
        self._request, self._scheme = request, scheme
        self._experts = [_decoded(request.weights, expert) for expert in range(request.experts)]

    def __call__(self, buffers: Buffers) -> None:
        r, steps = self._request, self._scheme == "bf16_steps"
        x = buffers.x.float()
        x = torch.nn.functional.pad(x, (0, self._experts[0][0].shape[1] - x.shape[1]))
        of_x, of_h = r.global_scales if self._scheme == "nvfp4" else (1.0, 1.0)
        x = _quantised(x, self._scheme, of_x)
        answers = []
        for w13, w2 in self._experts:
            gate, up = numerics.to_bf16(x @ w13.T * of_x).chunk(2, dim=1)
            h = numerics.to_bf16((swiglu_in_steps if steps else swiglu)(gate, up, r.limit, r.alpha, r.beta))
            answers.append(numerics.to_bf16(_quantised(h, self._scheme, of_h) @ w2.T * of_h))
        every, ids = torch.stack(answers, 1), buffers.ids[:, :, None].long()
        own = every.gather(1, ids.clamp(min=0).expand(-1, -1, every.shape[2]))
        nobody = buffers.ids < 0
        slots, weights = own.masked_fill(nobody[:, :, None], 0), buffers.weights.masked_fill(nobody, 0)
        total = (numerics.marlin_sum if steps else numerics.slot_sum)(slots, weights)
        buffers.out.copy_(total[:, : buffers.out.shape[1]])


def _quantised(x: torch.Tensor, scheme: str, global_scale: float) -> torch.Tensor:
    if scheme == "nvfp4":
        return numerics.to_nvfp4(x, global_scale)
    return numerics.to_mxfp8(x) if scheme == "mxfp8" else x


def _decoded(weights: LoadedWeights, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(W13, W2) of one expert, float32."""

    def one(name: str) -> torch.Tensor:
        codes, scales = (weights.read(part, expert, expert + 1)[0] for part in (name, f"{name}_scale"))
        return numerics.weights(codes, scales)

    return one("w13_weight"), one("w2_weight")


class _Recorded(TorchDispatchMode):
    """A graph: recording while it is entered, and to be replayed afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, list[torch.Tensor] | None]] = []
        self._noted: dict[str, None] = {}

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for _, _, _, made in self._operations:
            for tensor in made or ():
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)

    @property
    def incidents(self) -> tuple[str, ...]:
        return tuple(self._noted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        name = func.overloadpacket.__name__
        if name in _SYNCS:
            self._noted[f"host sync: {name} reads a tensor back"] = None
        if name in _FROM_HOST:
            self._noted[f"copy from host memory: {name} of a Python list or number"] = None
        if func._schema.is_mutable or func.namespace == _COLLECTIVE:
            self._operations.append((func, args, kwargs, None))
        elif made and not _alias(made, given):
            self._operations.append((func, args, kwargs, made))
        return result

    def replay(self) -> None:
        for func, args, kwargs, made in self._operations:
            result = func(*args, **kwargs)
            if func.namespace == _COLLECTIVE:
                result[-1].wait()
            if made is not None:
                fresh = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
                for kept, new in zip(made, fresh, strict=True):
                    if kept.shape == new.shape:
                        kept.copy_(new)

    def close(self) -> None:
        self._operations.clear()


def _alias(made: list[torch.Tensor], given: list[torch.Tensor]) -> bool:
    """Is a result only another view of memory that came in?"""
    before = {tensor.untyped_storage().data_ptr() for tensor in given}
    return any(tensor.untyped_storage().data_ptr() in before for tensor in made)
