"""Loaded parameters into the layout that FlashInfer's SM90 mixed-input GEMM reads, a few experts at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from conformance.stacks.protocols import LoadedWeights

#: Experts that are held twice while they are rearranged.
_AT_ONCE = 32


class Prepared(NamedTuple):
    """fc1 (E, 2K, H / 2) is [up; gate], fc2 (E, H, K / 2), both interleaved uint8; scales as FlashInfer shapes them."""

    fc1: torch.Tensor
    fc2: torch.Tensor
    fc1_scale: torch.Tensor
    fc2_scale: torch.Tensor


def sm90(weights: LoadedWeights, experts: int, device: str) -> Prepared:
    """Swap W13's halves to [W3; W1], weights and scales alike, then interleave with FlashInfer's own helpers."""
    from flashinfer.fused_moe import (
        interleave_moe_scales_for_sm90_mixed_gemm,
        interleave_moe_weights_for_sm90_mixed_gemm,
    )

    def interleaved(data: torch.Tensor) -> torch.Tensor:
        return interleave_moe_weights_for_sm90_mixed_gemm(data.contiguous(), "fp4")

    def scales(data: torch.Tensor) -> torch.Tensor:
        return interleave_moe_scales_for_sm90_mixed_gemm(data.contiguous())

    def streamed(parameter: str, arrange: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        parts = []
        for first in range(0, experts, _AT_ONCE):
            parts.append(arrange(weights.read(parameter, first, min(first + _AT_ONCE, experts), device)))
        return torch.cat(parts)

    return Prepared(
        fc1=streamed("w13_weight", lambda data: interleaved(up_first(data))),
        fc2=streamed("w2_weight", interleaved),
        fc1_scale=streamed("w13_weight_scale", lambda data: scales(up_first(data))),
        fc2_scale=streamed("w2_weight_scale", scales),
    )


def up_first(w13: torch.Tensor) -> torch.Tensor:
    """(E, 2K, n) as loaded, [W1 gate; W3 up], to the kernel's [W3 up; W1 gate]."""
    gate, up = w13.chunk(2, dim=1)
    return torch.cat([up, gate], dim=1)
