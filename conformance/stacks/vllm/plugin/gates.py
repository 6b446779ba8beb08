"""Three checks for AMX that stand in Python alone: the compiled kernels behind them run on AVX512-BF16 as well.

They are opened only where the processor has no AMX; elsewhere vLLM is left as it is.
"""

import importlib

_LINEAR = "vllm.model_executor.kernels.linear.scaled_mm.cpu"
_EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe"
_PLATFORM = "vllm.platforms.cpu"


def open_gates():
    import torch

    if torch.cpu._is_amx_tile_supported():
        return []
    linear = importlib.import_module(_LINEAR).CPUFp8BlockScaledMMKernel
    experts = importlib.import_module(_EXPERTS).CPUExpertsMxfp4
    linear.is_supported = classmethod(lambda cls, compute_capability=None: (True, None))
    experts._supports_current_device = staticmethod(lambda: True)
    _keep_schedule()
    return [
        "no AMX here: chunked prefill and prefix caching stay as asked (vLLM turns them off for MLA without AMX)",
        "no AMX here: CPUFp8BlockScaledMMKernel.is_supported says yes, its kernel runs on AVX512-BF16",
        "no AMX here: CPUExpertsMxfp4._supports_current_device says yes, its kernel runs on AVX512-BF16",
    ]


def _keep_schedule():
    """vLLM says of its DeepSeek-V4 CPU kernels that they support both, and asks for AMX only since they were compiled
    with it in mind."""
    platform = importlib.import_module(_PLATFORM).CpuPlatform
    inner = platform.check_and_update_config.__func__

    def check(cls, vllm_config):
        scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
        asked = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching
        inner(cls, vllm_config)
        scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching = asked

    platform.check_and_update_config = classmethod(check)
