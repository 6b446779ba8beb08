"""Layer `attention`: FlashInfer's kernels for DeepSeek-V4's sparse attention, on a GPU that is here or only bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from conformance.errors import NotSupported, StackRefused
from conformance.stacks.attention_calls_protocol import ENTRIES, WINDOW, CallRequest
from conformance.stacks.attention_protocol import AttendCall, AttentionCapabilities, Pages, Sparse
from conformance.stacks.flashinfer import attention_calls, library
from conformance.stacks.flashinfer.attention_calls import ROW, WIDTH, WORKSPACE, AttentionLibrary
from conformance.stacks.flashinfer.errors import stack_errors
from conformance.stacks.protocols import MoeCall

Caller = Callable[[AttentionLibrary, AttendCall, torch.Tensor, torch.Tensor], None]
#: Query heads of the sparse kernels. Source: FlashInfer 0.7.2, `_check_dsv4_sparse_mla_inputs`.
_SPARSE_HEADS = (8, 16, 32, 64, 128)
_DEVICE = "cuda"


def driven(capability: tuple[int, int]) -> tuple[Caller, AttentionCapabilities]:
    """How that capability is called, and what its kernels declare, device left out. Raises NotSupported."""
    if capability == (9, 0):
        notes = ("MLA without sinks, on BF16 rows; both caches are put behind each other for it",)
        return attention_calls.sm90, AttentionCapabilities(
            parts=("attend",), kv="bfloat16", sinks=False, window_tokens=64, notes=notes
        )
    if capability in {(10, 0), (10, 3)}:
        return attention_calls.sm100, AttentionCapabilities(
            parts=("attend",), phases=("decode", "prefill"), heads=_SPARSE_HEADS, kv="bfloat16", aligned_slots=4
        )
    if capability in {(12, 0), (12, 1)}:
        return attention_calls.sm120, AttentionCapabilities(
            parts=("attend",), phases=("decode", "prefill"), heads=_SPARSE_HEADS, aligned_slots=64
        )
    raise NotSupported(
        f"FlashInfer's DeepSeek-V4 attention is driven on 9.0, 10.0, 10.3, 12.0 and 12.1; {capability} is none"
    )


def plans_on_host() -> bool:
    """Does a call on this GPU need the host between its inputs and its kernel?"""
    return torch.cuda.get_device_capability() == (9, 0)


def real() -> AttentionLibrary:
    mla = library.imported("flashinfer.mla")
    sparse = getattr(mla, "trtllm_batch_decode_sparse_mla_dsv4", _lacking)
    return AttentionLibrary(mla.BatchMLAPagedAttentionWrapper, sparse)


def _lacking(**given: Any) -> NoReturn:
    del given
    raise NotSupported("this FlashInfer has no trtllm_batch_decode_sparse_mla_dsv4; 0.7.2 has")


def padded(heads: int, capability: tuple[int, int]) -> int:
    """Raises StackRefused for more heads than the kernel takes."""
    taken = driven(capability)[1].heads
    for size in taken or (heads,):
        if heads <= size:
            return size
    raise StackRefused(f"FlashInfer's sparse MLA takes {', '.join(map(str, taken))} heads; {heads} were asked for")


class FlashInferAttention:
    """See attention_protocol.AttentionKernel: `attend` alone."""

    def __init__(self) -> None:
        self._capability = torch.cuda.get_device_capability()
        self._workspace: torch.Tensor | None = None

    def capabilities(self) -> AttentionCapabilities:
        import msgspec

        declared = driven(self._capability)[1]
        return msgspec.structs.replace(declared, device=_DEVICE, device_words=torch.cuda.get_device_name())

    def padded(self, heads: int) -> int:
        return padded(heads, self._capability)

    def attend(self, call: AttendCall, out: torch.Tensor) -> None:
        """A batch of no tokens is answered with nothing."""
        if not len(call.q):
            return
        if self._workspace is None:
            self._workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=_DEVICE)
        with stack_errors("attend"):
            driven(self._capability)[0](real(), call, out, self._workspace)
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()


def calls(request: CallRequest) -> list[MoeCall]:
    """What is called there, bound to the installed FlashInfer; nothing runs and no GPU is needed."""
    noted: list[MoeCall] = []
    found, (caller, declared) = real(), driven(request.capability)
    kind = found.mla
    steps = {name: library.noted(inspect.getattr_static(kind, name), _nothing, noted) for name in ("plan", "run")}

    class Noting:
        def __init__(self, *positional: Any, **named: Any) -> None:
            library.noted(kind, _nothing, noted)(*positional, **named)

        def plan(self, **named: Any) -> None:
            steps["plan"](self, **named)

        def run(self, **named: Any) -> None:
            steps["run"](self, **named)

    call = _blank(request, declared)
    noting = AttentionLibrary(Noting, library.noted(found.sparse, _nothing, noted))
    caller(noting, call, torch.empty_like(call.q), torch.empty(16, dtype=torch.uint8))
    return noted


def _blank(request: CallRequest, declared: AttentionCapabilities) -> AttendCall:
    """A decode of that size over caches of three pages of zeros."""
    heads, tokens = padded(request.heads, request.capability), request.tokens

    def cache(page: int, keys: int) -> Sparse:
        size = page * 1024 if declared.kv == "bfloat16" else -(-page * ROW // 576) * 576
        slots = torch.zeros(tokens, keys, dtype=torch.int32)
        return Sparse(
            Pages(torch.zeros(3, size, dtype=torch.uint8), page), slots, torch.ones(tokens, dtype=torch.int32)
        )

    compressed = cache(256 // request.ratio, ENTRIES) if request.ratio else None
    q = torch.zeros(tokens, heads, WIDTH, dtype=torch.bfloat16)
    return AttendCall("decode", q, torch.zeros(heads), WIDTH**-0.5, cache(64, WINDOW), compressed)


def _nothing(*positional: Any, **named: Any) -> None:
    del positional, named
