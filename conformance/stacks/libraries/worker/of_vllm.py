"""vLLM's quantisers in PyTorch, which its emulation and its weight loading use: `quantization/utils`. Its GPU kernels
are others, and are not run here."""

_ROOT = "vllm.model_executor.layers.quantization.utils"


def _found(module, name):
    import importlib

    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _function(name):
    found = _found(*_FUNCTIONS[name])
    if found is None:
        raise NotImplementedError(f"this vLLM has no {'.'.join(_FUNCTIONS[name])}")
    return found


_FUNCTIONS = {
    "cast_to_fp4": (f"{_ROOT}.nvfp4_emulation_utils", "cast_to_fp4"),
    "ref_nvfp4_quant": (f"{_ROOT}.nvfp4_emulation_utils", "ref_nvfp4_quant"),
    "break_fp4_bytes": (f"{_ROOT}.nvfp4_emulation_utils", "break_fp4_bytes"),
    "dequantize_to_dtype": (f"{_ROOT}.nvfp4_emulation_utils", "dequantize_to_dtype"),
    "unswizzle": (f"{_ROOT}.nvfp4_emulation_utils", "convert_swizzled_to_linear"),
    "swizzle_mx": (f"{_ROOT}.mxfp8_utils", "swizzle_mxfp8_scale"),
    "swizzle": (f"{_ROOT}.nvfp4_utils", "swizzle_blockscale"),
    "swizzle_older": (f"{_ROOT}.quant_utils", "swizzle_blockscale"),
    "mxfp8": (f"{_ROOT}.mxfp8_utils", "_mxfp8_e4m3_quantize_torch"),
    "mxfp8_back": (f"{_ROOT}.mxfp8_utils", "dequant_mxfp8_to_bf16"),
    "mxfp4_back": ("vllm.model_executor.layers.fused_moe.flashinfer_moe_ep", "_dequant_mxfp4_ue8m0_gran32"),
    "e8m0": (f"{_ROOT}.fp8_utils", "_upcast_e8m0_to_fp32"),
}
_OFFERS = {
    "e2m1.encode": "cast_to_fp4",
    "e2m1.decode": "break_fp4_bytes",
    "e8m0.decode": "e8m0",
    "nvfp4.quantize": "ref_nvfp4_quant",
    "nvfp4.dequantize": "dequantize_to_dtype",
    "mxfp8.quantize": "mxfp8",
    "mxfp8.dequantize": "mxfp8_back",
    "mxfp4.dequantize": "mxfp4_back",
    "unswizzle": "unswizzle",
}


def load():
    import vllm  # noqa: F401
    from vllm.platforms import current_platform  # noqa: F401


def VERSION():
    import vllm

    return vllm.__version__


def _swizzle_blockscale():
    return _found(*_FUNCTIONS["swizzle"]) or _found(*_FUNCTIONS["swizzle_older"])


def CAPABILITIES():
    offers = [offer for offer, name in _OFFERS.items() if _found(*_FUNCTIONS[name]) is not None]
    if _swizzle_blockscale() is not None:
        offers += ["swizzle", "experts"]
    return {
        "offers": offers,
        "runs": "vLLM's PyTorch emulation (ref_nvfp4_quant, _mxfp8_e4m3_quantize_torch, swizzle_blockscale); on a CPU",
        "inputs": ["bfloat16", "float16", "float32"],
        "codes": {"e2m1_negative_zero": "either", "e8m0_zero": "0", "e8m0_nan": "inf"},
        "mxfp8": {"scale": "rceil", "zero_scale": 0},
        "notes": [
            "codes are read off the values that cast_to_fp4 rounds to; .cuda() is left out of swizzle_blockscale"
        ],
    }


def _codes(values):
    """E2M1 values, as floats -> codes; NaN, which is none, gets 16."""
    import torch

    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=values.device)
    magnitude = torch.searchsorted(grid, values.float().abs().contiguous())
    wrong = values.isnan() | (grid[magnitude.clamp(max=7)] != values.float().abs())
    return torch.where(wrong, 16, magnitude + 8 * torch.signbit(values).long()).to(torch.uint8)


def encode(code, x):
    return _codes(_function("cast_to_fp4")(x.clone()))


def decode(code, codes):
    import torch

    if code == "e2m1":
        return _function("break_fp4_bytes")(codes[:, None].contiguous(), torch.float32)[:, 0]
    return _function("e8m0")(codes)


def quantize(format, x, global_scale):
    import torch

    if format == "mxfp8":
        codes, scales = _function("mxfp8")(x)
        return [codes.view(torch.uint8), scales.view(x.shape[0], -1), 1.0]
    if global_scale is None:
        raise NotImplementedError("vLLM's callers bring their own global scale")
    divisor = torch.tensor(1 / global_scale, dtype=torch.float32)
    values, scales = _function("ref_nvfp4_quant")(x, divisor, 16)
    codes = _codes(values)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return [packed, scales.to(torch.float8_e4m3fn).view(torch.uint8), 1 / float(divisor)]


def dequantize(format, codes, scales, global_scale):
    import torch

    if format == "mxfp4":
        return _function("mxfp4_back")(codes, scales).float()
    if format == "mxfp8":
        return _function("mxfp8_back")(codes.view(torch.float8_e4m3fn), scales).float()
    factor = torch.tensor(global_scale, dtype=torch.float32)
    return _function("dequantize_to_dtype")(codes, scales, factor, torch.float32, 16, swizzle=False)


def _swizzled(scales):
    import torch

    kept = torch.Tensor.cuda
    setattr(torch.Tensor, "cuda", lambda self, *args, **named: self)  # noqa: B010
    try:
        return _swizzle_blockscale()(scales.view(torch.float8_e4m3fn)).view(torch.uint8)
    finally:
        setattr(torch.Tensor, "cuda", kept)  # noqa: B010


def swizzle(scales):
    return _swizzled(scales).flatten()


def experts(scales):
    return _swizzled(scales).flatten(1)


def unswizzle(flat, rows, columns):
    """Called as `dequantize_to_dtype` calls it: columns counted in elements."""
    return _function("unswizzle")(flat, rows, columns * 16, 16)
