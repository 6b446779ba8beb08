"""compressed-tensors: the CPU paths of its NVFP4 and MX compressors, rounding before packing as they do."""


def load():
    from compressed_tensors.quantization.utils import helpers  # noqa: F401


def VERSION():
    from importlib.metadata import version

    return version("compressed-tensors")


def CAPABILITIES():
    return {
        "offers": [
            "e2m1.encode", "e2m1.decode", "e8m0.decode", "nvfp4.quantize", "nvfp4.own_global", "nvfp4.dequantize",
            "mxfp4.quantize", "mxfp4.dequantize", "mxfp8.quantize",
        ],
        "runs": "compressed_tensors: cast_to_fp4, pack_fp4_to_uint8, generate_gparam, calculate_qparams; on a CPU",
        "inputs": ["bfloat16", "float32"],
        "codes": {"e2m1_negative_zero": "either", "e8m0_nan": "inf"},
        "nvfp4": {"scale_underflow": 0x20, "zero_scale": 0x20},
        "mxfp4": {"scale": "even", "zero_scale": None},
        "mxfp8": {"scale": "even", "zero_scale": None},
    }  # fmt: skip


def _function(name, *modules):
    import importlib

    for module in modules:
        try:
            found = getattr(importlib.import_module(f"compressed_tensors.{module}"), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    raise NotImplementedError(f"this compressed-tensors has no {name}")


_COMPRESSORS = (
    "compressors.nvfp4.helpers",
    "compressors.nvfp4.base",
    "compressors.quantized_compressors.nvfp4_quantized",
    "compressors.quantized_compressors.fp4_quantized",
)


def _rounded(x):
    from compressed_tensors.quantization.quant_args import FP4_E2M1_DATA

    return FP4_E2M1_DATA.cast_to_fp4(x.clone())


def encode(code, x):
    packed = _function("pack_fp4_to_uint8", *_COMPRESSORS)(_rounded(x)[:, None].repeat(1, 2))
    return packed[:, 0] & 0xF


def decode(code, codes):
    import torch

    if code == "e2m1":
        unpack = _function("unpack_fp4_from_uint8", *_COMPRESSORS)
        return unpack(codes[:, None].contiguous(), len(codes), 2, dtype=torch.float32)[:, 0]
    return _powers(codes)


def _powers(scales):
    """As its MX compressors decode scales."""
    import torch

    try:
        return _function("decompress_mx_scale", "compressors.mx_utils")(scales).float()
    except NotImplementedError:
        helper = _function(
            "maybe_convert_from_mx_exp", "quantization.utils.mxfp_utils", "quantization.utils.mxfp4_utils"
        )
        return helper(_arguments("mxfp4"), scales.to(torch.float32))


def _stored_powers(scales):
    """Powers of two as its MX compressors store them."""
    import torch

    try:
        return _function("compress_mx_scale", "compressors.mx_utils")(scales, torch.uint8)
    except NotImplementedError:
        return (127 + torch.floor(torch.log2(scales)).to(torch.int32)).to(torch.uint8)


def _arguments(format):
    import torch
    from compressed_tensors.quantization import QuantizationArgs

    if format == "nvfp4":
        return QuantizationArgs(
            num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
            scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn,
        )  # fmt: skip
    bits = 4 if format == "mxfp4" else 8
    return QuantizationArgs(
        num_bits=bits, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8,
        zp_dtype=torch.uint8,
    )  # fmt: skip


def quantize(format, x, global_scale):
    import torch
    from compressed_tensors.quantization.lifecycle.forward import quantize as quantised
    from compressed_tensors.quantization.utils import helpers

    arguments = _arguments(format)
    blocks = x.unflatten(-1, (-1, arguments.group_size))
    low, high = blocks.amin(-1), blocks.amax(-1)
    divisor = None
    if format == "nvfp4":
        divisor = helpers.generate_gparam(low.min(), high.max()) if global_scale is None else None
        divisor = torch.tensor([1 / global_scale], dtype=torch.float32) if divisor is None else divisor
    scales, _ = helpers.calculate_qparams(low, high, arguments, global_scale=divisor)
    stored = scales.to(torch.float8_e4m3fn).view(torch.uint8) if format == "nvfp4" else _stored_powers(scales)
    values = quantised(x=x, scale=scales, global_scale=divisor, zero_point=None, args=arguments)
    if format == "mxfp8":
        return [values.to(torch.float8_e4m3fn).view(torch.uint8), stored, 1.0]
    packed = _function("pack_fp4_to_uint8", *_COMPRESSORS)(values)
    return [packed, stored, 1.0 if divisor is None else 1 / float(divisor)]


def dequantize(format, codes, scales, global_scale):
    import torch
    from compressed_tensors.quantization.lifecycle.forward import dequantize as dequantised

    unpack = _function("unpack_fp4_from_uint8", *_COMPRESSORS)
    values = unpack(codes, codes.shape[0], codes.shape[1] * 2, dtype=torch.float32)
    if format == "nvfp4":
        divisor = torch.tensor([1 / global_scale], dtype=torch.float32)
        factor = scales.view(torch.float8_e4m3fn).float()
        return dequantised(x_q=values, scale=factor, global_scale=divisor, args=_arguments(format), dtype=torch.float32)
    return dequantised(x_q=values, scale=_powers(scales), args=_arguments(format), dtype=torch.float32)
