"""vLLM's own NVFP4 quantiser, `scaled_fp4_quant`, on the GPU that this process sees. Written, and run nowhere."""

import importlib

from .problems import Unsupported, refusals


def describe_quantiser():
    """{"runs": words}. Raises Unsupported below SM100, for which vLLM compiles none."""
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        raise Unsupported("vLLM's platform here is not CUDA")
    major, minor = torch.cuda.get_device_capability()
    if major < 10:
        raise Unsupported(f"vLLM compiles no NVFP4 quantiser for {major}.{minor}")
    return {"runs": f"vLLM's scaled_fp4_quant on {torch.cuda.get_device_name()}"}


def quantise(arguments):
    """[x (M, K), global scale] -> codes (M, K / 2), scales in tiles, flat. vLLM's global scale divides."""
    import torch
    from vllm import _custom_ops as ops

    packing = importlib.import_module(f"{__package__}.packing")
    x, global_scale = packing.unpacked(arguments)
    divisor = torch.tensor(1 / global_scale, dtype=torch.float32, device="cuda")
    with refusals("scaled_fp4_quant"):
        codes, scales = ops.scaled_fp4_quant(x.cuda(), divisor, is_sf_swizzled_layout=True)
        torch.cuda.synchronize()
    return packing.packed([codes.view(torch.uint8), scales.view(torch.uint8).flatten()])
