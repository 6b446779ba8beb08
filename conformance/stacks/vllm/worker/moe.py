"""The routed experts' own kernel: vLLM's layer, vLLM's conversion of its weights, vLLM's modular kernel.

On this process's GPU (`open_moe` and what follows), or with the compiled functions noted down and none of them run
(`moe_calls`), which needs no GPU. Weights come as bytes in the layer's own parameters; no loader takes part.
"""

import contextlib
from types import SimpleNamespace
from unittest import mock

from . import noted, oracle, virtual_tp
from .problems import OF_THE_MACHINE, Refused, Unsupported, cause_of, refusals, stacks_words
from .routed import PARAMETERS, expert_map, parallel_config
from .sessions import Table, buffers
from .start import accepted_arguments

layers = Table("layer")


#: What a vLLM with virtual TP asks the model for: its type (by which it picks a quantization method), and its plan.
_MODEL = SimpleNamespace(
    hf_config=SimpleNamespace(model_type="deepseek_v4"), hf_text_config=SimpleNamespace(model_type="deepseek_v4")
)


class _Layer:
    """One rank's RoutedExperts and the configuration that must be current while it is built and run."""

    def __init__(self, layer, config, device):
        self.layer, self.config, self.device = layer, config, device
        #: The tokens of the latest call, on the device.
        self.x = None


def build(tp, rank, backend, experts, slots, hidden, width, limit, device):
    """RoutedExperts of `width` elements a rank, `backend` chosen by vLLM's own oracle. Raises Refused, Unsupported."""
    import torch
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.fused_moe import FusedMoEConfig, RoutedExperts
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import RoutingMethodType
    from vllm.model_executor.layers.quantization.mxfp4 import Mxfp4Config

    oracle.candidates(backend)
    parallel = parallel_config(tp, rank)
    fields = {
        "num_experts": experts,
        "experts_per_token": slots,
        "hidden_dim": hidden,
        "intermediate_size": width * tp,
        "num_local_experts": experts,
        "num_logical_experts": experts,
        "activation": MoEActivation.SILU,
        "device": device,
        "routing_method": RoutingMethodType.DeepseekV4,
        "moe_parallel_config": parallel,
        "in_dtype": torch.bfloat16,
        "moe_backend": backend,
        "swiglu_limit": limit,
        "max_num_tokens": 4096,
    }
    named = {
        "layer_name": "experts",
        "params_dtype": torch.bfloat16,
        "quant_config": Mxfp4Config(),
        "expert_map_manager": expert_map(parallel, experts),
        "swiglu_limit": limit,
        "ckpt_gate_proj_name": "w1",
        "ckpt_down_proj_name": "w2",
        "ckpt_up_proj_name": "w3",
    }
    try:
        config = VllmConfig(device_config=DeviceConfig(device))
        if virtual_tp.exists():
            config.model_config = _MODEL
        with set_current_vllm_config(config), torch.device(device):
            named["moe_config"] = FusedMoEConfig(**accepted_arguments(FusedMoEConfig, fields))
            layer = RoutedExperts(**accepted_arguments(RoutedExperts.__init__, named))
    except Unsupported:
        raise
    except Exception as error:
        if isinstance(cause_of(error), OF_THE_MACHINE):
            raise  # no word of vLLM's own: this way to build its layer does not fit this version
        raise Refused(stacks_words(error)) from error
    shapes = {name: tuple(getattr(layer, name).shape) for name in PARAMETERS}
    due = {
        "w13_weight": (experts, 2 * width, hidden // 2),
        "w13_weight_scale": (experts, 2 * width, hidden // 32),
        "w2_weight": (experts, hidden, width // 2),
        "w2_weight_scale": (experts, hidden, width // 32),
    }
    wrong = [
        f"{name} is {list(shapes[name])}, {list(due[name])} was given" for name in due if shapes[name] != due[name]
    ]
    if wrong:
        raise Refused(f"{backend}'s layer has another size than the weights: {'; '.join(wrong)}")
    return _Layer(layer, config, device)


def open_moe(tp, rank, backend, experts, slots, hidden, width, limit):
    """The session's number, and words on what vLLM picked."""
    import torch
    from vllm.v1.worker import workspace

    if not workspace.is_workspace_manager_initialized():
        workspace.init_workspace_manager(torch.device("cuda"))
    opened = build(tp, rank, backend, experts, slots, hidden, width, limit, "cuda")
    return {"session": layers.add(opened), "picked": picked(opened)}


def picked(opened):
    method = opened.layer.quant_method
    return f"{type(method).__name__}, {getattr(method.experts_cls, '__name__', None)}, {method.mxfp4_backend.name}"


def fill_moe(session, parameter, first, last, buffer):
    """Experts [first, last) of a parameter from the start of a shared buffer."""
    target = getattr(layers[session].layer, parameter).data[first:last]
    target.copy_(buffers[buffer][: target.numel()].view(target.shape))


def convert_moe(session):
    """vLLM's own conversion to the kernel's layout, and its choice of a kernel. Raises Refused."""
    from vllm.config import set_current_vllm_config

    opened = layers[session]
    import torch

    with refusals("process_weights_after_loading"), set_current_vllm_config(opened.config), torch.no_grad():
        opened.layer.quant_method.process_weights_after_loading(opened.layer)
    kernel = opened.layer.quant_method.moe_kernel
    return (
        f"{type(kernel).__name__} of {type(kernel.prepare_finalize).__name__} and {type(kernel.fused_experts).__name__}"
    )


def run_moe(session, buffer, tokens, slots, same_x=False):
    """One batch. The buffer holds x (tokens, hidden) bfloat16, ids (tokens, slots) int32 and weights (tokens, slots)
    float32 one after the other; the output (tokens, hidden) bfloat16 is put behind them. `same_x`: x is as in the call
    before, and not in the buffer."""
    import torch

    opened = layers[session]
    hidden = opened.layer.hidden_size
    at, parts = 0, []
    for dtype, width in ((torch.bfloat16, hidden), (torch.int32, slots), (torch.float32, slots)):
        size = tokens * width * dtype.itemsize
        parts.append(buffers[buffer][at : at + size].view(dtype).view(tokens, width))
        at += size
    out = buffers[buffer][at : at + tokens * hidden * 2].view(torch.bfloat16).view(tokens, hidden)
    if not same_x:
        opened.x = parts[0].to(opened.device)
    x, ids, weights = opened.x.clone(), *(part.to(opened.device) for part in parts[1:])
    with refusals("apply"), _poisoned():
        out.copy_(apply(opened, x, ids, weights))
    if opened.device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def _poisoned():
    """NaN in the workspace that the kernel cuts its intermediates from, and inside in all that `new_empty` hands out:
    vLLM allocates a call's output with it. Fill patterns only; what is computed is vLLM's."""
    import torch
    from vllm.v1.worker import workspace

    for held in workspace.current_workspace_manager()._current_workspaces:
        if held is not None:
            held.view(-1).fill_(255)
    real = torch.Tensor.new_empty

    def new_empty(tensor, *sizes, **options):
        made = real(tensor, *sizes, **options)
        return made.fill_(torch.nan) if made.dtype in (torch.bfloat16, torch.float16, torch.float32) else made

    with mock.patch.object(torch.Tensor, "new_empty", new_empty):
        yield


def apply(opened, x, ids, weights):
    import torch
    from vllm.config import set_current_vllm_config

    method = opened.layer.quant_method
    given = {
        "layer": opened.layer,
        "x": x,
        "topk_weights": weights,
        "topk_ids": ids,
        "shared_experts": None,
        "shared_experts_input": None,
    }
    with set_current_vllm_config(opened.config), torch.no_grad():
        return method.apply(**accepted_arguments(method.apply, given))


def close_moe(session):
    import torch

    layer = layers[session].layer
    for name in PARAMETERS:
        getattr(layer, name).data = torch.empty(0)
    layer.quant_method.moe_kernel = None
    layer.quant_method.moe_quant_config = None
    layers.drop(session)
    torch.cuda.empty_cache()


def moe_calls(capability, tokens, **request):
    """What vLLM calls of its compiled library, from conversion to output: [(function, tensors, values)]. Nothing runs;
    the platform is a pretended CUDA of that capability."""
    import torch
    from vllm.v1.worker import workspace

    from .fake_platform import pretend

    if not workspace.is_workspace_manager_initialized():
        workspace.init_workspace_manager(torch.device("cpu"))
    noted.import_all()
    with pretend(capability), noted.compiled() as calls:
        opened = build(**request, device="cpu")
        with refusals("process_weights_after_loading"):
            opened.layer.quant_method.process_weights_after_loading(opened.layer)
        slots, hidden = request["slots"], request["hidden"]
        x = torch.zeros(tokens, hidden, dtype=torch.bfloat16)
        ids = torch.arange(tokens * slots, dtype=torch.int32).view(tokens, slots) % request["experts"]
        with refusals("apply"):
            got = apply(opened, x, ids, torch.ones(tokens, slots))
    if tuple(got.shape) != (tokens, hidden) or got.dtype != torch.bfloat16:
        raise Refused(f"the kernel's output is {got.dtype} {list(got.shape)}; bfloat16 {[tokens, hidden]} was due")
    return calls
