"""Two checks for AMX that stand in Python alone: the compiled kernels behind them run on AVX512-BF16 as well.

They are opened only where the processor has no AMX; elsewhere vLLM is left as it is.
"""

import importlib

_LINEAR = "vllm.model_executor.kernels.linear.scaled_mm.cpu"
_EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe"


def open_gates():
    import torch

    if torch.cpu._is_amx_tile_supported():
        return []
    linear = importlib.import_module(_LINEAR).CPUFp8BlockScaledMMKernel
    experts = importlib.import_module(_EXPERTS).CPUExpertsMxfp4
    linear.is_supported = classmethod(lambda cls, compute_capability=None: (True, None))
    experts._supports_current_device = staticmethod(lambda: True)
    return [
        "no AMX here: CPUFp8BlockScaledMMKernel.is_supported says yes, its kernel runs on AVX512-BF16",
        "no AMX here: CPUExpertsMxfp4._supports_current_device says yes, its kernel runs on AVX512-BF16",
    ]
