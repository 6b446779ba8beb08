"""torchao: `prototype/mx_formats`, its CPU paths in PyTorch. MX scales by its default, FLOOR."""


def load():
    from torchao.prototype.mx_formats import kernels, mx_tensor, nvfp4_tensor, utils  # noqa: F401


def VERSION():
    import torchao

    return torchao.__version__


def CAPABILITIES():
    return {
        "offers": [
            "e2m1.encode", "e2m1.decode", "e8m0.decode", "pack", "unpack", "nvfp4.quantize", "nvfp4.own_global",
            "nvfp4.dequantize", "mxfp4.quantize", "mxfp4.dequantize", "mxfp8.quantize", "mxfp8.dequantize",
            "swizzle", "unswizzle",
        ],
        "runs": "torchao.prototype.mx_formats: f32_to_f4_unpacked, nvfp4_quantize, to_mx (FLOOR), to_blocked; on a CPU",
        "inputs": ["bfloat16", "float32"],
        "nvfp4": {"scale_floor": 0x08, "zero_scale": 0x08},
        "views": "refused",
    }  # fmt: skip


def encode(code, x):
    from torchao.prototype.mx_formats.kernels import f32_to_f4_unpacked

    return f32_to_f4_unpacked(x)


def decode(code, codes):
    import torch
    from torchao.prototype.mx_formats import kernels, mx_tensor

    if code == "e2m1":
        return kernels.f4_unpacked_to_f32(codes)
    return mx_tensor.get_fp_scale(codes.view(torch.float8_e8m0fnu))


def pack(codes):
    from torchao.prototype.mx_formats.kernels import pack_uint4

    return pack_uint4(codes)


def unpack(packed):
    from torchao.prototype.mx_formats.kernels import unpack_uint4

    return unpack_uint4(packed)


def quantize(format, x, global_scale):
    import torch
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor

    if format == "nvfp4":
        own = nvfp4_tensor.per_tensor_amax_to_scale(x.abs().max()) if global_scale is None else None
        scale = torch.tensor(global_scale, dtype=torch.float32) if own is None else own
        scales, codes = nvfp4_tensor.nvfp4_quantize(x, 16, scale)
        return [codes, scales.view(torch.uint8), float(scale)]
    element = torch.float4_e2m1fn_x2 if format == "mxfp4" else torch.float8_e4m3fn
    scales, codes = mx_tensor.to_mx(x, element, 32)
    return [codes.view(torch.uint8), scales.view(torch.uint8), 1.0]


def dequantize(format, codes, scales, global_scale):
    import torch
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor

    if format == "nvfp4":
        whole = nvfp4_tensor.NVFP4Tensor(
            codes, scales.view(torch.float8_e4m3fn), 16, torch.float32, torch.tensor(global_scale, dtype=torch.float32)
        )
        return whole.dequantize(torch.float32)
    element = torch.float4_e2m1fn_x2 if format == "mxfp4" else torch.float8_e4m3fn
    data = codes if format == "mxfp4" else codes.view(element)
    return mx_tensor.to_dtype(data, scales.view(torch.float8_e8m0fnu), element, 32, torch.float32)


def swizzle(scales):
    from torchao.prototype.mx_formats.utils import to_blocked

    return to_blocked(scales)


def unswizzle(flat, rows, columns):
    from torchao.prototype.mx_formats.utils import from_blocked

    return from_blocked(flat, rows, columns)
