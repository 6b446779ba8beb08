"""vLLM's CPU attention modules, and what their methods need to run outside an engine."""

import contextlib
from types import SimpleNamespace

from .problems import Unsupported

#: The most tokens in one call.
TOKENS = 4096
#: What is called of the extension, by method.
_KERNELS = (
    "fused_qnorm_rope_kv_insert_cpu",
    "flash_mla_with_kvcache_cpu",
    "save_partial_states_cpu",
    "compress_norm_rope_store_cpu",
    "fp8_paged_mqa_logits_cpu",
    "topk_transform_512_cpu",
    "fused_indexer_q_rope_quant_cpu",
    "inverse_gptj_rope_o_proj_cpu",
    "bmm_cpu",
)


def classes():
    """vLLM's module of CPU attention. Raises Unsupported for a version without one."""
    try:
        from vllm.models.deepseek_v4.cpu import cpu_sparse
    except ImportError as error:
        raise Unsupported(f"this vLLM has no DeepSeek-V4 attention for CPUs: {error}") from error
    return cpu_sparse


def check():
    """Raises Unsupported for a vLLM without them."""
    import torch

    classes()
    lacking = [name for name in _KERNELS if not hasattr(torch.ops._C, name)]
    if lacking:
        raise Unsupported(f"this vLLM's CPU extension has no {', '.join(lacking)}")


def pages(data, tokens, width):
    """A page's rows as vLLM views them: (pages, tokens, width) with a page's whole length between two."""
    return data.as_strided((data.shape[0], tokens, width), (data.stride(0), width, 1))


def rotation(table):
    return SimpleNamespace(cos_sin_cache=table)


@contextlib.contextmanager
def context(metadata):
    from vllm.forward_context import ForwardContext, override_forward_context

    with override_forward_context(ForwardContext({}, metadata, {})):
        yield
