"""The kernel's call, recorded in place of being made: vLLM's own experts class up to the library's function."""

import contextlib
import importlib
import inspect

from .problems import Refused, Unsupported, stacks_words
from .start import module

_EXPERTS = (
    "vllm.model_executor.layers.fused_moe.experts.flashinfer_cutlass_moe",
    "vllm.model_executor.layers.fused_moe.flashinfer_cutlass_moe",
)
_FUNCTION = "flashinfer_cutlass_fused_moe"
_METHOD = "vllm.model_executor.layers.quantization.mxfp4"


@contextlib.contextmanager
def no_kernel():
    """Inside, the post-load step ends with the weights: the modular kernel around them wants devices and streams."""
    from types import SimpleNamespace

    found = module(_METHOD)
    name = "make_mxfp4_moe_kernel"
    if not hasattr(found, name):
        raise Unsupported(f"this vLLM's MXFP4 method makes its kernel in another way than by {name}")
    before = getattr(found, name)
    nothing = SimpleNamespace(process_weights_after_loading=lambda *_, **__: None)
    setattr(found, name, lambda *_, **__: SimpleNamespace(fused_experts=nothing))
    try:
        yield
    finally:
        setattr(found, name, before)


def call(layer, scheme, tokens, slots):
    """MoeCall's fields: the experts class of the layer's kernel, given `tokens` tokens as its scheme has them, each to
    `slots` experts, as far as FlashInfer's function, and whether the installed function takes that."""
    import torch

    owner = next(filter(None, map(module, _EXPERTS)), None)
    if owner is None or not hasattr(owner, _FUNCTION):
        raise Unsupported("this vLLM calls FlashInfer's CUTLASS MoE in a way that this adapter does not know")
    target = importlib.import_module("flashinfer.fused_moe").cutlass_fused_moe
    method, moe, hidden = layer.quant_method, layer.moe_config, layer.w2_weight.shape[1]
    quantised = scheme == "mxfp8"
    given = {
        "output": torch.zeros(tokens, hidden, dtype=torch.bfloat16),
        "hidden_states": torch.zeros(tokens, hidden, dtype=torch.float8_e4m3fn if quantised else torch.bfloat16),
        "w1": layer.w13_weight,
        "w2": layer.w2_weight,
        "topk_weights": torch.zeros(tokens, slots),
        "topk_ids": torch.zeros(tokens, slots, dtype=torch.int64),
        "activation": moe.activation,
        "global_num_experts": moe.num_experts,
        "a1q_scale": torch.zeros(-(-tokens // 128) * -(-hidden // 128) * 512, dtype=torch.uint8) if quantised else None,
        "apply_router_weight_on_input": False,
    }
    made, before = [], getattr(owner, _FUNCTION)
    try:
        experts = method.experts_cls(moe_config=moe, quant_config=method.get_fused_moe_quant_config(layer))
        setattr(owner, _FUNCTION, lambda *positional, **named: made.append((positional, named)))
        experts.apply(**{name: given.get(name) for name in inspect.signature(experts.apply).parameters})
    except Exception as error:
        raise Refused(f"{method.experts_cls.__name__}: {stacks_words(error)}") from error
    finally:
        setattr(owner, _FUNCTION, before)
    if len(made) != 1:
        raise Refused(f"{method.experts_cls.__name__} calls the kernel {len(made)} times for one batch")
    return _bound(target, *made[0])


def _bound(target, positional, named):
    answer = {"function": target.__name__, "tensors": {}, "values": {}, "refused": ""}
    try:
        arguments = inspect.signature(target).bind(*positional, **named).arguments
    except TypeError as error:
        answer["refused"], arguments = str(error), named
    for name, value in arguments.items():
        _told(answer, name, value)
    return answer


def _told(answer, name, value):
    import torch

    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        answer["tensors"][name] = {"dtype": kind, "shape": list(value.shape), "contiguous": value.is_contiguous()}
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            _told(answer, f"{name}[{index}]", one)
    elif value is not None:
        answer["values"][name] = str(value).removeprefix("torch.")
