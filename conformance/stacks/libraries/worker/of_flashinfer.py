"""FlashInfer's references in PyTorch: what its trace templates publish, and its CPU dequantiser. Its CUDA and CuTe
kernels round MX scales up and break ties to even; they need a GPU and are not run here."""


def load():
    from flashinfer.trace.templates import gemm, quantize  # noqa: F401


def VERSION():
    import flashinfer

    return flashinfer.__version__


def CAPABILITIES():
    return {
        "offers": [
            "e2m1.encode", "e8m0.decode", "nvfp4.quantize", "nvfp4.dequantize", "mxfp4.quantize", "mxfp4.dequantize",
            "mxfp8.quantize", "unswizzle", "pack",
        ],
        "runs": "flashinfer.trace.templates.quantize (references in PyTorch), "
        "_e2m1_and_ufp8sf_scale_to_float_cpu; on a CPU",
        "inputs": ["bfloat16", "float16", "float32"],
        "codes": {"e2m1_ties": "first", "e2m1_negative_zero": "either", "e8m0_nan": "inf"},
        "mxfp4": {"scale": "trunc", "zero_scale": 127},
        "mxfp8": {"scale": "trunc", "zero_scale": 127},
    }  # fmt: skip


def encode(code, x):
    import torch
    from flashinfer.trace.templates.quantize import _fp4_e2m1_quantize_block

    return _fp4_e2m1_quantize_block(x, x.abs()).to(torch.uint8)


def decode(code, codes):
    from flashinfer.trace.templates.gemm import _e8m0_to_float

    return _e8m0_to_float(codes)


def pack(codes):
    from flashinfer.trace.templates.quantize import _pack_fp4_pairs

    return _pack_fp4_pairs(codes)


def quantize(format, x, global_scale):
    import torch
    from flashinfer.trace.templates import quantize as templates

    if format == "mxfp8":
        codes, scales = templates._mxfp8_quantize_reference(x)
        return [codes.view(torch.uint8), scales, 1.0]
    if format == "mxfp4":
        codes, scales = templates._mxfp4_quantize_reference(x)
        return [codes, scales, 1.0]
    if global_scale is None:
        raise NotImplementedError("FlashInfer's callers bring their own global scale")
    divisor = torch.tensor([1 / global_scale], dtype=torch.float32)
    codes, scales = templates._nvfp4_quantize_reference(x, divisor)
    return [codes, scales.view(torch.uint8), 1 / float(divisor)]


def dequantize(format, codes, scales, global_scale):
    import torch
    from flashinfer.quantization import fp4_quantization

    block, kind = (16, 1) if format == "nvfp4" else (32, 0)
    factor = torch.tensor([global_scale], dtype=torch.float32)
    return fp4_quantization._e2m1_and_ufp8sf_scale_to_float_cpu(codes, scales, factor, block, kind, False)


def unswizzle(flat, rows, columns):
    from flashinfer.trace.templates.gemm import _unswizzle_sf_128x4

    return _unswizzle_sf_128x4(flat, rows, columns)
