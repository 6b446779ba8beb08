"""Stand-ins for what building a whole model wants and this machine has not: process groups, streams, FP8 kernels."""

import contextlib
import inspect
from types import SimpleNamespace

from .start import module

NOTE = (
    "layers built on torch's meta device with stand-ins: process groups, CUDA streams and events, the choice of the "
    "FP8 linear kernel, FlashInfer's presence, the sparse indexer's CUDA check, fp8 KV cache"
)


def group(size, rank):
    return SimpleNamespace(
        world_size=size,
        rank=rank,
        rank_in_group=rank,
        local_rank=rank,
        ranks=list(range(size)),
        first_rank=0,
        last_rank=size - 1,
        is_first_rank=rank == 0,
        is_last_rank=rank == size - 1,
        device_group=None,
        cpu_group=None,
        device_communicator=None,
    )


class _AttentionBackend:
    """For layers of plain attention, which hold no weights: none of it is called after construction."""

    accept_output_buffer = True

    @staticmethod
    def get_name():
        return "TRITON_ATTN"

    @staticmethod
    def supports_alibi_sqrt():
        return False

    @staticmethod
    def get_impl_cls():
        return lambda *_, **__: SimpleNamespace(supports_quant_query_input=False)


@contextlib.contextmanager
def standing_in(tp, rank):
    """Inside, vLLM believes to be `rank` of `tp`, alone on every other axis of parallelism."""
    import torch

    replaced = []

    def put(owner, name, value):
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    state = module("vllm.distributed.parallel_state")
    for name in ("_TP", "_DP", "_PP", "_EP", "_PCP", "_DCP", "_EPLB"):
        if hasattr(state, name):
            put(state, name, group(tp, rank) if name == "_TP" else group(1, 0))
    for name in ("Stream", "Event"):
        put(torch.cuda, name, lambda *_, **__: SimpleNamespace())
    fp8 = module("vllm.model_executor.layers.quantization.fp8")
    for name, function in list(vars(fp8).items()) if fp8 else ():
        if name.startswith("init_") and "kernel" in name and inspect.isfunction(function):
            put(fp8, name, lambda *_, **__: SimpleNamespace())
    indexer = module("vllm.model_executor.layers.sparse_attn_indexer")
    for name, function in list(vars(indexer).items()) if indexer else ():
        if name.startswith("_ensure_") and name.endswith("_supported") and inspect.isfunction(function):
            put(indexer, name, lambda *_, **__: None)
    flashinfer = module("vllm.utils.flashinfer")
    for name, function in list(vars(flashinfer).items()) if flashinfer else ():
        if name.startswith("has_flashinfer_sparse") and callable(function):
            put(flashinfer, name, lambda *_, **__: True)
    attention = module("vllm.model_executor.layers.attention.attention")
    if attention and hasattr(attention, "get_attn_backend"):
        put(attention, "get_attn_backend", lambda *_, **__: _AttentionBackend)
    try:
        yield
    finally:
        for owner, name, value in reversed(replaced):
            setattr(owner, name, value)
