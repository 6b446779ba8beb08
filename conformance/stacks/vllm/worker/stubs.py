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
    try:
        yield
    finally:
        for owner, name, value in reversed(replaced):
            setattr(owner, name, value)
