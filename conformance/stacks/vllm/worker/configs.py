"""ModelConfig and VllmConfig for one geometry, tensor-parallel size, capability and pair of backends."""

import contextlib

from . import virtual_tp
from .fake_platform import pretend
from .problems import Refused, Unsupported, stacks_words


def model_config(folder):
    """A fresh ModelConfig: planning changes it in place, so it is never shared. `folder` holds a config.json."""
    from vllm.config import ModelConfig

    try:
        return ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=4096,
            enforce_eager=True,
        )
    except Exception as error:  # whatever it raises, it is this version's answer to this model
        raise Unsupported(f"this vLLM builds no ModelConfig for the geometry: {stacks_words(error)}") from error


def _named_backends(moe, attention):
    """KernelConfig and AttentionConfig. Raises Unsupported for a name that this version does not have."""
    from vllm.config import AttentionConfig, KernelConfig

    try:
        kernel = KernelConfig(moe_backend=moe)
    except Exception as error:
        raise Unsupported(f"this vLLM has no MoE backend {moe!r}: {stacks_words(error)}") from error
    try:
        return kernel, AttentionConfig(backend=attention)
    except Exception as error:
        raise Unsupported(f"this vLLM has no attention backend {attention!r}: {stacks_words(error)}") from error


def vllm_config(model, tp, capability, moe, attention, guarded=True):
    """A VllmConfig as `vllm serve` builds it, under the pretended capability.

    `guarded=False` takes the virtual-TP guard out for this one construction. Raises Refused with vLLM's own words.
    """
    from vllm.config import DeviceConfig, ParallelConfig, VllmConfig

    kernel, attend = _named_backends(moe, attention)
    guard = contextlib.nullcontext() if guarded else virtual_tp.without_guard()
    with pretend(capability), guard:
        try:
            # the external launcher: a pretended CUDA would refuse a world size above its device count
            parallel = ParallelConfig(tensor_parallel_size=tp, distributed_executor_backend="external_launcher")
            return VllmConfig(
                model_config=model,
                parallel_config=parallel,
                kernel_config=kernel,
                attention_config=attend,
                device_config=DeviceConfig("cpu"),
            )
        except Exception as error:
            raise Refused(stacks_words(error)) from error
