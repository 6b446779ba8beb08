"""The adapter: what the library offers and declares, and how it is called. All there is to write."""

from __future__ import annotations

import torch

from conformance.errors import StackRefused
from conformance.stacks.protocols import StackInfo, StackOptions
from conformance.stacks.quant_protocol import (
    Activations,
    GemmCapabilities,
    QuantCapabilities,
    Quantized,
    QuantizedWeight,
)
from example_kernels import kernels


def open_stack(options: StackOptions) -> ExampleStack:
    return ExampleStack()


class ExampleStack:
    name = "example-kernels"

    def info(self) -> StackInfo:
        return StackInfo(name=self.name, subject=self.name, version="0.1.0", capabilities=["quant"])

    def quantizer(self) -> Quantizer:
        return Quantizer()

    def gemm(self) -> Gemm:
        return Gemm()

    def close(self) -> None:
        pass


class Quantizer:
    def capabilities(self) -> QuantCapabilities:
        """The rules that are not named here are the standard's: ties to even, a scale that underflows is zero."""
        return QuantCapabilities(
            offers=frozenset(
                ["e2m1.encode", "e2m1.decode", "nvfp4.quantize", "nvfp4.own_global", "nvfp4.dequantize", "nvfp4.weight"]
            ),
            runs="example_kernels.kernels, PyTorch on a CPU",
            inputs=("bfloat16", "float32"),
        )

    def encode(self, code: str, x: torch.Tensor) -> torch.Tensor:
        return kernels.to_e2m1(x)

    def decode(self, code: str, codes: torch.Tensor) -> torch.Tensor:
        return kernels.from_e2m1(codes)

    def quantize(self, format: str, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
        try:
            return Quantized(*kernels.quantize(x, global_scale))
        except ValueError as error:  # the library's own validation
            raise StackRefused(str(error)) from error

    def dequantize(self, format: str, q: Quantized) -> torch.Tensor:
        return kernels.dequantize(q.codes, q.scales, q.global_scale)

    def quantize_weight(self, format: str, w: torch.Tensor) -> QuantizedWeight:
        each = [kernels.quantize(matrix) for matrix in w]
        codes, scales, global_scales = zip(*each, strict=True)
        return QuantizedWeight(torch.stack(codes), torch.stack(scales), torch.tensor(global_scales))


class Gemm:
    def capabilities(self) -> GemmCapabilities:
        return GemmCapabilities(
            weights="nvfp4",
            activations="bf16",
            runs="example_kernels.kernels, PyTorch on a CPU",
            alignment=1,
            beyond="untouched",
            accumulation=2.0**-20,
            steps=(1, 16),
        )

    def prepare(self, weights: QuantizedWeight) -> kernels.Experts:
        return kernels.Experts(weights.codes, weights.scales, weights.global_scales)

    def run(
        self, handle: kernels.Experts, a: Activations, offsets: torch.Tensor, sizes: torch.Tensor, out: torch.Tensor
    ) -> None:
        handle.multiply(a.x, offsets, sizes, out)

    def close(self, handle: kernels.Experts) -> None:
        pass
