"""vLLM's real RoutedExperts for one rank, built on the CPU from a VllmConfig."""

import traceback

from . import oracle
from .fake_platform import pretend
from .problems import Refused, Unsupported, stacks_words
from .start import accepted_arguments

LAYER = "model.layers.0.ffn.experts"
#: The model type whose experts have biases, and gate and up rows in turn.
GPT_OSS = "gpt_oss"
#: Also what the harness calls them: everything else that the layer holds is not loaded from the checkpoint.
PARAMETERS = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")


class _AnyDivisor(int):
    """An intermediate size whose `% tp` is 0, so that only the assertion is gone: `//` stays what it is."""

    def __mod__(self, other):
        return 0


def build(config, tp, rank, name, backend, experts, capability, undivided=False, width=None):
    """RoutedExperts on the CPU, for `rank` of `tp`, `experts` experts, as if the oracle had chosen `backend` for
    the MoE backend `name`.

    Call it inside `set_current_vllm_config(config)`. `undivided` goes round FusedMoEConfig's assertion that `tp`
    divides the intermediate size. Raises Refused (the layer's own words).
    """
    import torch
    from vllm.model_executor.layers.fused_moe import RoutedExperts

    text = config.model_config.hf_text_config
    limit = getattr(text, "swiglu_limit", None)
    parallel = parallel_config(tp, rank)
    try:
        moe = moe_config(config, parallel, name, experts, undivided, width)
        with pretend(capability), oracle.choosing(backend):
            layer = RoutedExperts(
                **accepted_arguments(
                    RoutedExperts.__init__,
                    {
                        "layer_name": LAYER,
                        "params_dtype": torch.bfloat16,
                        "moe_config": moe,
                        "quant_config": config.quant_config,
                        "expert_map_manager": expert_map(parallel, experts),
                        "swiglu_limit": limit,
                        "scoring_func": getattr(text, "scoring_func", "softmax"),
                        "ckpt_gate_proj_name": "w1",
                        "ckpt_down_proj_name": "w2",
                        "ckpt_up_proj_name": "w3",
                    },
                )
            )
    except Unsupported:
        raise
    except Exception as error:
        raise Refused(stacks_words(error)) from error
    lacking = [name for name in PARAMETERS if not hasattr(layer, name)]
    if lacking:
        method = type(layer.quant_method).__name__
        raise Unsupported(f"{method} holds no {', '.join(lacking)}: these are no MXFP4 experts")
    return layer


def parallel_config(tp, rank):
    """Tensor parallel only: no expert, data or sequence parallelism."""
    from vllm.model_executor.layers.fused_moe import FusedMoEParallelConfig

    return FusedMoEParallelConfig(
        **accepted_arguments(
            FusedMoEParallelConfig,
            {
                "tp_size": tp,
                "tp_rank": rank,
                "pcp_size": 1,
                "pcp_rank": 0,
                "dp_size": 1,
                "dp_rank": 0,
                "ep_size": 1,
                "ep_rank": 0,
                "sp_size": 1,
                "use_ep": False,
                "all2all_backend": "allgather_reducescatter",
                "enable_eplb": False,
            },
        )
    )


def moe_config(config, parallel, name, experts, undivided=False, width=None):
    """FusedMoEConfig for the backend `name`, with the intermediate size that the configuration carries by now, or
    with `width`."""
    import torch
    from vllm.model_executor.layers.fused_moe import FusedMoEConfig
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import RoutingMethodType

    text = config.model_config.hf_text_config
    kind = getattr(text, "model_type", "?")
    fused = kind == GPT_OSS
    width = width or getattr(text, "intermediate_size" if fused else "moe_intermediate_size", None)
    if width is None:
        raise Unsupported(f"{kind}: how wide experts without moe_intermediate_size are is not known here")
    arguments = accepted_arguments(
        FusedMoEConfig,
        {
            "num_experts": experts,
            "experts_per_token": min(experts, text.num_experts_per_tok),
            "hidden_dim": text.hidden_size,
            "intermediate_size": _AnyDivisor(width) if undivided else width,
            "num_local_experts": experts,
            "num_logical_experts": experts,
            "activation": MoEActivation.SWIGLUOAI if fused else MoEActivation.SILU,
            "has_bias": fused,
            "device": "cpu",
            "routing_method": RoutingMethodType.Renormalize if fused else RoutingMethodType.DeepseekV4,
            "moe_parallel_config": parallel,
            "in_dtype": torch.bfloat16,
            "moe_backend": name,
            "swiglu_limit": getattr(text, "swiglu_limit", None),
            "max_num_tokens": 64,
        },
    )
    try:
        return FusedMoEConfig(**arguments)
    except AssertionError as error:  # its own validation, as of 0.33: tp must divide the intermediate size
        line = traceback.extract_tb(error.__traceback__)[-1].line
        raise Refused(f"FusedMoEConfig: {stacks_words(error)}: {line}") from error


def expert_map(parallel, experts):
    from vllm.model_executor.layers.fused_moe.expert_map_manager import ExpertMapManager

    return ExpertMapManager(
        **accepted_arguments(
            ExpertMapManager,
            {
                "max_num_batched_tokens": 64,
                "top_k": 1,
                "global_num_experts": experts,
                "num_redundant_experts": 0,
                "num_expert_group": None,
                "moe_parallel_config": parallel,
                "placement_strategy": "linear",
                "enable_eplb": False,
                "num_fused_shared_experts": 0,
                "rocm_aiter_enabled": False,
            },
        )
    )
