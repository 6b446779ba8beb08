"""The reference stack's grouped GEMM and linear layer: operands decoded to float32, one matmul a group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from conformance.errors import StackRefused
from conformance.stacks.quant_protocol import (
    Activations,
    GemmCapabilities,
    LinearCapabilities,
    Quantized,
    QuantizedWeight,
    SwigluCapabilities,
)
from conformance.stacks.reference_moe import swiglu
from conformance.stacks.reference_quant import ReferenceQuantizer, dequantize


class ReferenceGemm:
    def capabilities(self) -> GemmCapabilities:
        return GemmCapabilities(
            weights="nvfp4", activations="nvfp4", runs="float32 matmul of decoded operands", steps=(1, 16)
        )

    def prepare(self, weights: QuantizedWeight) -> list[torch.Tensor]:
        decoded = dequantize("nvfp4", weights.codes, weights.scales)
        return [matrix * scale for matrix, scale in zip(decoded, weights.global_scales.tolist(), strict=True)]

    def run(
        self,
        handle: list[torch.Tensor],
        a: Activations,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        assert a.scales is not None and a.global_scales is not None
        for expert, matrix in enumerate(handle):
            first, last = int(offsets[expert]), int(offsets[expert] + sizes[expert])
            if last > len(out):
                raise StackRefused(f"group {expert} ends at row {last}; there are {len(out)}")
            rows = dequantize("nvfp4", a.x[first:last], a.scales[first:last]) * a.global_scales[expert]
            out[first:last] = (rows @ matrix.mT).to(out.dtype)

    def close(self, handle: list[torch.Tensor]) -> None:
        handle.clear()


class ReferenceSwiglu:
    """A product for each half, then SwiGLU in float32."""

    def capabilities(self) -> SwigluCapabilities:
        return SwigluCapabilities(
            weights="nvfp4",
            activations="nvfp4",
            runs="float32 matmul of decoded operands",
            steps=(1, 16),
            quantises="float32",
        )

    def prepare(self, weights: QuantizedWeight) -> list[tuple[torch.Tensor, torch.Tensor]]:
        decoded = dequantize("nvfp4", weights.codes, weights.scales)
        scales = weights.global_scales.view(len(decoded), -1).expand(-1, 2)
        return [
            (gate * float(of[0]), up * float(of[1]))
            for (gate, up), of in zip((matrix.chunk(2) for matrix in decoded), scales, strict=True)
        ]

    def run(
        self,
        handle: list[tuple[torch.Tensor, torch.Tensor]],
        a: Activations,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        limit: float | None,
        out: torch.Tensor,
    ) -> None:
        for first, last, product in _products(handle, a, offsets, sizes, limit):
            out[first:last] = product.to(out.dtype)

    def run_quantized(
        self,
        handle: list[tuple[torch.Tensor, torch.Tensor]],
        a: Activations,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        limit: float | None,
        global_scale: float,
    ) -> Quantized:
        whole = torch.zeros(len(a.x), len(handle[0][0]))
        for first, last, product in _products(handle, a, offsets, sizes, limit):
            whole[first:last] = product
        return ReferenceQuantizer().quantize("nvfp4", whole, global_scale)

    def close(self, handle: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        handle.clear()


def _products(
    handle: list[tuple[torch.Tensor, torch.Tensor]],
    a: Activations,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    limit: float | None,
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """(first row, last row, SwiGLU of its products) of each group."""
    assert a.scales is not None and a.global_scales is not None
    for expert, (gate, up) in enumerate(handle):
        first, last = int(offsets[expert]), int(offsets[expert] + sizes[expert])
        rows = dequantize("nvfp4", a.x[first:last], a.scales[first:last]) * a.global_scales[expert]
        yield first, last, swiglu(rows @ gate.mT, rows @ up.mT, limit, 1.0, 0.0)


class _Linear(NamedTuple):
    matrix: torch.Tensor
    bias: torch.Tensor | None
    input_scale: float | None


class ReferenceLinear:
    def capabilities(self) -> LinearCapabilities:
        return LinearCapabilities("nvfp4", "nvfp4", "float32 matmul of decoded operands", steps=(1, 16))

    def prepare(
        self,
        weights: QuantizedWeight,
        split: int | None = None,
        bias: torch.Tensor | None = None,
        input_scale: float | None = None,
    ) -> _Linear:
        if input_scale is not None and not (input_scale > 0 and math.isfinite(input_scale)):
            raise StackRefused(f"an input scale of {input_scale} is no scale: finite and above zero was due")
        rows, columns = weights.codes.shape[1], weights.codes.shape[2] * 2
        if weights.codes.dtype != torch.uint8 or weights.scales.shape[1:] != (rows, columns // 16):
            given = f"weights of {weights.codes.dtype} {list(weights.codes.shape)}, scales {list(weights.scales.shape)}"
            raise StackRefused(f"{given}: two E2M1 codes a byte and a scale for sixteen were due")
        matrix = dequantize("nvfp4", weights.codes[0], weights.scales[0])
        parts = matrix.split([len(matrix)] if split is None else [split, len(matrix) - split])
        scales = weights.global_scales.flatten().tolist()
        if len(scales) != len(parts):
            raise StackRefused(f"{len(scales)} global scales for {len(parts)} parts of the rows")
        scaled = torch.cat([part * scale for part, scale in zip(parts, scales, strict=True)])
        return _Linear(scaled, None if bias is None else bias.clone(), input_scale)

    def run(self, handle: _Linear, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != handle.matrix.shape[1]:
            raise StackRefused(f"x has {x.shape[-1]} features; {handle.matrix.shape[1]} were due")
        rows = x.reshape(-1, x.shape[-1])
        q = ReferenceQuantizer().quantize("nvfp4", rows, handle.input_scale)
        y = dequantize("nvfp4", q.codes, q.scales) * q.global_scale @ handle.matrix.mT
        if handle.bias is not None:
            y = y + handle.bias.float()
        return y.to(torch.bfloat16).view(*x.shape[:-1], len(handle.matrix))

    def close(self, handle: _Linear) -> None:
        pass
