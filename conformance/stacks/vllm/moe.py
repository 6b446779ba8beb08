"""Layer `moe`: the MoE kernel that vLLM's own oracle gives for a backend, in a worker that sees the GPU.

Weights, tokens and outputs travel through shared buffers, pinned on both sides where the driver allows it. The worker
is another than the one that plans and loads: that one has no GPU, and its platform is a pretended one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from conformance.errors import NotSupported
from conformance.stacks.protocols import SHARDS, MoeCall, MoeCapabilities, MoeRequest, TensorInfo
from conformance.stacks.vllm.exchange import Exchange

if TYPE_CHECKING:
    from conformance.stacks.vllm.stack import VllmWorker

#: The one backend whose arithmetic this adapter knows.
BACKEND = "marlin"
_AT_ONCE = 32
#: The smallest of Marlin's tiles. Source: vLLM 0.33.0, fused_marlin_moe (`block_size_m in [8, 16, 32, 48, 64]`). Its
#: moe_align_block_size sorts by atomics: of 200 calls on an H200 each had another order, and where an expert had more
#: tokens than a tile, 189 or more had tokens in other tiles.
_TILE_TOKENS = 8
_TOKENS = 4096


class VllmMoe:
    """See protocols.MoeKernel. Marlin: BF16 x MXFP4, each step stored in BF16."""

    def __init__(self, worker: VllmWorker, planner: VllmWorker) -> None:
        self._worker, self._planner = worker, planner
        self.buffer = Exchange(worker).buffer

    def capabilities(self) -> MoeCapabilities:
        """Raises NotSupported without a GPU that this interpreter's torch can use: references are computed there."""
        if not torch.cuda.is_available():
            raise NotSupported("vLLM's MoE kernels need a CUDA GPU that the harness's own torch sees too; none is here")
        return MoeCapabilities(
            scheme="bf16_steps",
            nan="swallowed",
            tile_tokens=_TILE_TOKENS,
            device="cuda",
            device_words=f"{torch.cuda.get_device_name()}, vLLM's {BACKEND}",
            ranks="in turn, in one process on one GPU",
            tokens=_TOKENS,
            empty_slots=False,
            notes=(
                "a batch of no tokens is answered with nothing, as vLLM's own layers are never called for one",
                "workspace and output memory hold NaN before each call",
            ),
        )

    def open(self, request: MoeRequest) -> VllmMoeLayer:
        """Raises NotSupported for another backend than Marlin, StackRefused with vLLM's words."""
        return VllmMoeLayer(self, self._worker, request)

    def calls(self, request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int) -> list[MoeCall]:
        """See protocols.MoeCalls: everything that vLLM calls of its compiled library. No GPU is needed."""
        fields = _fields(request) | {"slots": slots}
        told = self._planner.call("moe_calls", capability=capability, tokens=tokens, **fields)
        return [
            MoeCall(
                function,
                {name: TensorInfo(dtype, tuple(shape), flat) for name, (dtype, shape, flat) in tensors.items()},
                values,
            )
            for function, tensors, values in told
        ]


class VllmMoeLayer:
    """One rank's RoutedExperts over there, converted by vLLM."""

    def __init__(self, kernel: VllmMoe, worker: VllmWorker, request: MoeRequest) -> None:
        self._kernel, self._worker = kernel, worker
        self._hidden = request.geometry.hidden_size
        opened = worker.call("open_moe", **_fields(request))
        self.picked: str = opened["picked"]
        self.session: int = opened["session"]
        self._generation = worker.process.generation
        #: The tokens that are over there: checks send the same ones to one expert after another. Held on to, so that
        #: address and version tell them from others.
        self._sent: tuple[torch.Tensor, int] | None = None
        self._send(request)
        worker.call("convert_moe", session=self.session)

    def _send(self, request: MoeRequest) -> None:
        """Parameters as they were loaded, some experts at a time."""
        for parameter in SHARDS:
            for first in range(0, request.experts, _AT_ONCE):
                last = min(first + _AT_ONCE, request.experts)
                data = request.weights.read(parameter, first, last, "cuda")
                number, shared = self._kernel.buffer(data.numel())
                shared[: data.numel()].view(data.shape).copy_(data)
                self._worker.call(
                    "fill_moe", session=self.session, parameter=parameter, first=first, last=last, buffer=number
                )

    def run(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        tactic: int | None = None,
    ) -> None:
        """Its output is copied into `out` whole; the workspace that vLLM cuts it from is poisoned over there."""
        del tactic  # the kernel pins none
        if not len(x):
            return
        sent = self._sent
        known = sent is not None and _same_memory(sent[0], x) and sent[1] == x._version
        self._sent = x, x._version
        given = [x.contiguous(), ids.int().contiguous(), weights.float().contiguous()]
        parts = [part.view(torch.uint8).flatten() for part in given]
        sizes = [part.numel() for part in parts]
        number, shared = self._kernel.buffer(sum(sizes) + out.numel() * out.element_size())
        at = 0
        for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            if index or not known:
                shared[at : at + size].copy_(part)
            at += size
        call = {"session": self.session, "buffer": number, "tokens": len(x), "slots": ids.shape[1], "same_x": known}
        self._worker.call("run_moe", **call)
        answer = shared[at : at + out.numel() * out.element_size()].view(out.dtype).view(out.shape)
        out.copy_(answer)

    def tactics(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing to do if its worker is gone."""
        process = self._worker.process
        if process.generation == self._generation and process.alive:
            process.call("close_moe", session=self.session)


def _fields(request: MoeRequest) -> dict[str, Any]:
    """What the worker needs to build the layer. Raises NotSupported for what this adapter does not drive."""
    if request.backend != BACKEND:
        raise NotSupported(
            f"of vLLM's MoE kernels this adapter drives {BACKEND} alone; {request.backend} was asked for"
        )
    if request.alpha != 1.0 or request.beta != 0.0:
        raise NotSupported(f"{BACKEND}: SwiGLU with alpha {request.alpha:g} and beta {request.beta:g} is not driven")
    g = request.geometry
    hidden = request.weights.info("w2_weight").rows
    if hidden != g.hidden_size:
        raise NotSupported(f"{BACKEND}: a hidden size of {g.hidden_size} padded to {hidden} is not driven")
    return {
        "tp": request.tp,
        "rank": request.rank,
        "backend": request.backend,
        "experts": request.experts,
        "slots": min(request.experts, g.top_k),
        "hidden": hidden,
        "width": request.weights.info("w13_weight").rows // 2,
        "limit": request.limit,
    }


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride(), a.dtype) == (b.data_ptr(), b.shape, b.stride(), b.dtype)
