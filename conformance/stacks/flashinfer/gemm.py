"""FlashInfer's NVFP4 products on the GPU of this process: groups (SM100 by CuTe DSL, SM120 by CUTLASS), a linear layer.
Written, and run nowhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from conformance.errors import StackRefused
from conformance.stacks.flashinfer import quantised
from conformance.stacks.flashinfer.errors import stack_errors
from conformance.stacks.quant_protocol import Activations, GemmCapabilities, LinearCapabilities, QuantizedWeight

#: N and K are multiples of these. Source: `_check_group_gemm_nvfp4_nt_groupwise_problem_size`; tiles of 128 on SM100.
_GROUPED, _LINEAR = (8, 128), (32, 64)


class _Weights(NamedTuple):
    codes: torch.Tensor
    scales: torch.Tensor  #: in tiles
    global_scales: torch.Tensor


def _prepared(library: quantised.QuantLibrary, w: QuantizedWeight) -> _Weights:
    return _Weights(w.codes.clone(), quantised.tiles(library, w.scales), w.global_scales.float().clone())


class FlashInferGemm:
    def __init__(self) -> None:
        self._library = quantised.real()
        self._batched = torch.cuda.get_device_capability()[0] == 10

    def capabilities(self) -> GemmCapabilities:
        name = "grouped_gemm_nt_masked (CuTe DSL)" if self._batched else "group_gemm_nvfp4_nt_groupwise"
        return GemmCapabilities(
            weights="nvfp4",
            activations="nvfp4",
            runs=f"flashinfer {name} on {torch.cuda.get_device_name()}",
            device="cuda",
            alignment=1 if self._batched else 4,
            beyond="untouched" if self._batched else "anything",
            steps=_GROUPED,
        )

    def prepare(self, weights: QuantizedWeight) -> _Weights:
        with stack_errors("prepare"):
            return _prepared(self._library, weights)

    def run(
        self, handle: _Weights, a: Activations, offsets: torch.Tensor, sizes: torch.Tensor, out: torch.Tensor
    ) -> None:
        assert a.scales is not None and a.global_scales is not None
        alphas = a.global_scales * handle.global_scales
        groups = quantised.Groups(a.x, a.scales, offsets.tolist(), sizes.tolist(), alphas)
        multiply = quantised.batched if self._batched else quantised.groupwise
        with stack_errors("grouped product"):
            multiply(self._library, groups, handle.codes, handle.scales, out)

    def close(self, handle: _Weights) -> None:
        pass


class _Linear(NamedTuple):
    parts: list[_Weights]  #: of one matrix each: rows of one global scale
    bias: torch.Tensor | None
    input_scale: float


class FlashInferLinear:
    """`mm_fp4`, once for each part of the rows that has a global scale of its own."""

    def __init__(self) -> None:
        self._library = quantised.real()

    def capabilities(self) -> LinearCapabilities:
        runs = f"flashinfer nvfp4_quantize, mm_fp4 (cutlass) on {torch.cuda.get_device_name()}"
        return LinearCapabilities("nvfp4", "nvfp4", runs, device="cuda", dynamic=False, steps=_LINEAR)

    def prepare(
        self,
        weights: QuantizedWeight,
        split: int | None = None,
        bias: torch.Tensor | None = None,
        input_scale: float | None = None,
    ) -> _Linear:
        if input_scale is None or not (input_scale > 0 and math.isfinite(input_scale)):
            raise StackRefused(f"an input scale of {input_scale}: callers bring one, finite and above zero")
        rows = weights.codes.shape[1]
        shape = (1, rows, weights.codes.shape[2] // 8)
        if weights.codes.dtype != torch.uint8 or weights.scales.shape != shape:
            raise StackRefused(f"scales {list(weights.scales.shape)}: {list(shape)} were due")
        sizes = [rows] if split is None else [split, rows - split]
        of = weights.global_scales.flatten()
        if len(of) != len(sizes):
            raise StackRefused(f"{len(of)} global scales for {len(sizes)} parts of the rows")
        pieces = zip(weights.codes.split(sizes, 1), weights.scales.split(sizes, 1), of.split(1), strict=True)
        with stack_errors("prepare"):
            parts = [_prepared(self._library, QuantizedWeight(*piece)) for piece in pieces]
        return _Linear(parts, None if bias is None else bias.clone(), input_scale)

    def run(self, handle: _Linear, x: torch.Tensor) -> torch.Tensor:
        k = handle.parts[0].codes.shape[2] * 2
        if x.shape[-1] != k:
            raise StackRefused(f"x has {x.shape[-1]} features; {k} were due")
        flat, made = x.reshape(-1, k).contiguous(), []
        for part in handle.parts:
            alpha = part.global_scales * handle.input_scale
            with stack_errors("mm_fp4"):
                made.append(
                    quantised.linear(
                        self._library, flat, part.codes[0].contiguous(), part.scales[0], alpha, handle.input_scale
                    )
                )
        y = torch.cat(made, 1)
        if handle.bias is not None:
            y = y + handle.bias
        return y.view(*x.shape[:-1], -1)

    def close(self, handle: _Linear) -> None:
        pass
