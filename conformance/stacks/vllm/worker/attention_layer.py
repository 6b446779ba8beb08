"""vLLM's own attention module, built for one rank's heads and groups as if it were alone, with weights put in its
parameters: its output projection, conversion of weights included."""

import contextlib
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

from . import configs, cpu_modules, stubs
from .problems import OF_THE_MACHINE, Refused, Unsupported, stacks_words
from .sessions import Table
from .start import inspect_models_here

layers = Table("output projection")
#: What was changed in vLLM to drive it, in words.
PATCHES: list[str] = []
_LAYER = "model.layers.0.attn"


def build(config, heads, groups, positions):
    """The platform's attention of layer 0 without compression: projections do not differ between layers. `config`: the
    model's config.json as a dictionary. Raises Refused, Unsupported."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config

    kind, device = _kind()
    own = config | {
        "num_attention_heads": heads,
        "o_groups": groups,
        "max_position_embeddings": max(positions, configs.MODEL_LENGTH),
        "compress_ratios": [0] * len(config["compress_ratios"]),
    }
    model = _model(own)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        cache = CacheConfig(cache_dtype="fp8", block_size=256)
        current = VllmConfig(model_config=model, cache_config=cache, device_config=DeviceConfig(device))
        with set_current_vllm_config(current), _alone(), torch.device(device):
            return kind(current, prefix=_LAYER), current
    except Exception as error:
        if isinstance(error, OF_THE_MACHINE):
            raise
        raise Refused(f"building the attention module: {stacks_words(error)}") from error
    finally:
        torch.set_default_dtype(before)


def _kind():
    """The attention module of this process's platform, and its device."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _without_amx()
        return cpu_modules.classes().DeepseekV4CPUAttention, "cpu"
    try:
        from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention
    except Exception as error:
        raise Unsupported(f"vLLM's attention module cannot be imported: {stacks_words(error)}") from error
    return DeepseekV4FlashMLAAttention, "cuda"


def _model(config):
    """vLLM's ModelConfig of a config.json given as a dictionary."""
    inspect_models_here()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return configs.model_config(folder)


@contextlib.contextmanager
def _alone():
    """One rank of one; on a CPU without CUDA events: vLLM's own CPU runner takes those away too."""
    import torch
    from vllm.distributed import parallel_state

    names = [n for n in ("_TP", "_DP", "_PP", "_EP", "_PCP", "_DCP", "_EPLB") if hasattr(parallel_state, n)]
    before = [(parallel_state, n, getattr(parallel_state, n)) for n in names]
    for name in names:
        setattr(parallel_state, name, stubs.group(1, 0))
    if not torch.cuda.is_available():
        before.append((torch.cuda, "Event", torch.cuda.Event))
        setattr(torch.cuda, "Event", lambda *_, **__: SimpleNamespace())  # noqa: B010
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _without_amx():
    """vLLM's FP8 block-scaled linear asks for AMX in Python; its kernel runs on AVX512-BF16 as well."""
    import torch
    from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel

    if torch.cpu._is_amx_tile_supported() or PATCHES:
        return
    CPUFp8BlockScaledMMKernel.is_supported = classmethod(lambda cls, capability=None: (True, None))
    PATCHES.append("the FP8 linear kernel's Python check for AMX is taken out: this CPU has none")


def open_output(lent, config, heads, groups):
    """The session's number. Parameters take the bytes as they are; vLLM converts them after loading."""
    import torch
    from vllm.config import set_current_vllm_config

    module, current = build(config, heads, groups, len(lent["table"]))
    for name in ("wo_a", "wo_b"):
        linear = getattr(module, name)
        scale = linear.weight_scale_inv if hasattr(linear, "weight_scale_inv") else linear.weight_scale
        _put(f"{name}.weight", linear.weight, lent[name])
        _put(f"{name}'s scale", scale, lent[f"{name}_scale"])
    module.rotary_emb.cos_sin_cache = lent["table"].clone()
    with set_current_vllm_config(current), torch.no_grad(), _alone():
        for linear in (module.wo_a, module.wo_b):
            linear.quant_method.process_weights_after_loading(linear)
        if hasattr(module, "process_weights_after_loading"):
            module.process_weights_after_loading(torch.bfloat16)
    return layers.add((module, current))


def _put(name, parameter, given):
    import torch

    if parameter.data.view(torch.uint8).shape != given.shape:
        raise Refused(f"{name} of vLLM's module is {list(parameter.shape)}; {list(given.shape)} was given")
    parameter.data.view(torch.uint8).copy_(given)


def run_output(lent, session):
    lent["out"].copy_(project(session, lent["o"], lent["positions"]))


def project(session, o, positions):
    """`_o_proj` of the rank's own heads: vLLM slices the kernel's pad heads away before."""
    import torch
    from vllm.config import set_current_vllm_config

    module, current = layers[session]
    with set_current_vllm_config(current), cpu_modules.context({}), torch.no_grad(), _alone():
        return module._o_proj(o[:, : module.n_local_heads, :], positions)


def close_output(session):
    layers.drop(session)


def rope():
    """vLLM's builder of rotary embeddings. Raises Unsupported where it cannot be imported, for whatever reason."""
    try:
        from vllm.models.deepseek_v4.common.rope import build_deepseek_v4_rope
    except Exception as error:
        raise Unsupported(f"vLLM's builder of rotary tables cannot be imported: {stacks_words(error)}") from error
    return build_deepseek_v4_rope


def table(config, ratio, positions):
    """cos | sin of `build_deepseek_v4_rope` for layers of that ratio."""
    import torch
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    described = _model(config).hf_config
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        made = rope()(
            described,
            head_dim=described.head_dim,
            rope_head_dim=described.qk_rope_head_dim,
            max_position_embeddings=max(positions, 1),
            compress_ratio=max(1, ratio),
        )
    return made.cos_sin_cache[:positions].to(torch.float32).contiguous()
