"""ModelConfig and VllmConfig for one geometry, tensor-parallel size, capability and pair of backends."""

import contextlib
import copy
import typing

from . import oracle, virtual_tp
from .fake_platform import pretend
from .problems import OF_THE_MACHINE, Refused, Unsupported, cause_of, raised_in, stacks_words, unknown

#: Tokens that a request may have.
MODEL_LENGTH = 4096


#: folder -> its ModelConfig as built, never handed out itself.
_built: dict[str, typing.Any] = {}


def model_config(folder):
    """A ModelConfig of its own: planning changes it in place, so it is never shared. `folder` holds a config.json.

    Built once a folder and copied from then on: building takes seconds the first time, a copy half a millisecond.
    """
    if folder not in _built:
        _built[folder] = _model_config(folder)
    return copy.deepcopy(_built[folder])


def _model_config(folder):
    from vllm.config import ModelConfig

    try:
        return ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=MODEL_LENGTH,
            enforce_eager=True,
        )
    except Exception as error:  # whatever it raises, it is this version's answer to this model
        raise Unsupported(f"this vLLM builds no ModelConfig for the geometry: {stacks_words(error)}") from error


def moe_backends():
    """Names that `--moe-backend` takes (the oracle may know some that the configuration does not)."""
    from vllm.config.kernel import MoEBackend

    return sorted(typing.get_args(MoEBackend))


def attention_backends():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return sorted(AttentionBackendEnum.__members__)


def asked_as(moe):
    """What `--moe-backend` is given for a backend. Some that the oracle knows (`cpu`) it picks by itself only: `auto`.

    Raises Unsupported for a name that neither the configuration nor the oracle has.
    """
    if moe in moe_backends():
        return moe
    if moe in oracle.names():
        return "auto"
    raise unknown("MoE backend", moe, sorted({*moe_backends(), *oracle.names()}))


def check_names(moe, attention):
    """What `--moe-backend` is given. Raises Unsupported for a name that this version does not have."""
    if attention is not None and attention.upper() not in attention_backends():
        raise unknown("attention backend", attention, attention_backends())
    return asked_as(moe)


def _named_backends(moe, attention):
    """KernelConfig and AttentionConfig. Raises Unsupported as `check_names` does."""
    from vllm.config import AttentionConfig, KernelConfig

    return KernelConfig(moe_backend=check_names(moe, attention)), AttentionConfig(backend=attention)


def vllm_config(model, tp, capability, moe, attention, guarded=True, expert_parallel=False, draft=None):
    """A VllmConfig as `vllm serve` builds it, under the pretended capability.

    `guarded=False` takes the virtual-TP guard out for this one construction; `draft` is a SpeculativeConfig. Raises
    Refused with vLLM's own words; its `by_guard` says whether the virtual-TP layer raised it.
    """
    from vllm.config import DeviceConfig, VllmConfig

    kernel, attend = _named_backends(moe, attention)
    guard = contextlib.nullcontext() if guarded else virtual_tp.without_guard()
    with pretend(capability), guard, refusals():
        return VllmConfig(
            model_config=model,
            parallel_config=parallel_config(tp, expert_parallel),
            kernel_config=kernel,
            attention_config=attend,
            device_config=DeviceConfig("cpu"),
            **({} if draft is None else {"speculative_config": draft}),
        )


def parallel_config(tp, expert_parallel=False):
    """With the external launcher: a pretended CUDA would refuse a world size above its device count."""
    from vllm.config import ParallelConfig

    return ParallelConfig(
        tensor_parallel_size=tp,
        distributed_executor_backend="external_launcher",
        enable_expert_parallel=expert_parallel,
    )


@contextlib.contextmanager
def refusals():
    """Inside, what vLLM's validation raises becomes Refused."""
    try:
        yield
    except Exception as error:
        if isinstance(cause_of(error), OF_THE_MACHINE):
            raise  # no word of vLLM's own: something that this machine or this installation lacks
        refusal = Refused(stacks_words(error))
        refusal.by_guard = raised_in(error, "virtual_tp.py")
        raise refusal from error
