"""FlashInfer's CUDA quantisers and scale tiles on the GPU of this process.

Below SM100 its kernels compile and leave zeros (`quantization_utils.cuh`: `#if __CUDA_ARCH__ >= 1000 ... #else return
0`), and nothing refuses the call: there the scale tiles alone are offered. Written, and run nowhere.
"""

from __future__ import annotations

import torch

from conformance.errors import NotSupported
from conformance.stacks.flashinfer import quantised
from conformance.stacks.flashinfer.errors import stack_errors
from conformance.stacks.quant_protocol import CodeRules, Format, MxRules, QuantCapabilities, Quantized

_TILES = frozenset({"swizzle", "experts"})
_QUANTISERS = frozenset({"nvfp4.quantize", "mxfp4.quantize", "mxfp8.quantize"})


class FlashInferQuantizer:
    """Only what `offers` names is called."""

    device = "cuda"

    def __init__(self) -> None:
        self._library = quantised.real()
        self._major, self._minor = torch.cuda.get_device_capability()

    def capabilities(self) -> QuantCapabilities:
        has = self._major >= 10
        return QuantCapabilities(
            offers=_TILES | (_QUANTISERS if has else frozenset()),
            runs=f"flashinfer nvfp4_quantize, mxfp4_quantize, mxfp8_quantize, block_scale_interleave (CUDA) on "
            f"{torch.cuda.get_device_name()}",
            device="cuda",
            inputs=("bfloat16", "float16"),
            codes=CodeRules(e2m1_negative_zero="kept"),
            mxfp4=MxRules("rceil"),
            mxfp8=MxRules("rceil", zero_byte="zero"),
            views="refused",
            notes=() if has else ("FlashInfer's quantisers compile below SM100 and answer zeros: not offered",),
        )

    def quantize(self, format: Format, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
        with stack_errors(f"{format} quantise"):
            if not x.is_contiguous():
                raise ValueError(
                    f"rows of stride {x.stride(0)} are not contiguous: FlashInfer's kernel reads them flat"
                )
            if format == "nvfp4":
                if global_scale is None:
                    raise NotSupported("FlashInfer's callers bring their own global scale")
                codes, scales = quantised.quantise(self._library, x, global_scale)
                return Quantized(codes, scales.flatten(), global_scale, "128x4")
            call = self._library.mxfp4_quantize if format == "mxfp4" else self._library.mxfp8_quantize
            codes, scales = call(x)
            return Quantized(codes.view(torch.uint8), scales.view(torch.uint8).flatten(), 1.0, "128x4")

    def swizzle(self, scales: torch.Tensor) -> torch.Tensor:
        with stack_errors("block_scale_interleave"):
            flat: torch.Tensor = self._library.block_scale_interleave(scales.contiguous())
            return flat.flatten()

    def experts(self, scales: torch.Tensor) -> torch.Tensor:
        with stack_errors("block_scale_interleave"):
            return quantised.tiles(self._library, scales).flatten(1)
