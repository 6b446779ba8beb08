"""Loaded parameters into the layouts that FlashInfer's CUTLASS MoE reads, a few experts at a time.

As vLLM's `flashinfer_cutlass` backends convert them (oracle/mxfp4.py, 0.33.0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from conformance.stacks.flashinfer.library import Library
from conformance.stacks.protocols import LoadedWeights

#: Experts that are held twice while they are rearranged.
_AT_ONCE = 32


class Prepared(NamedTuple):
    """fc1 (E, 2K, H / 2 bytes) is [up; gate], fc2 (E, H, K / 2 bytes); `scales` as the call takes them."""

    fc1: torch.Tensor
    fc2: torch.Tensor
    scales: list[torch.Tensor]


def sm90(library: Library, weights: LoadedWeights, experts: int, device: str) -> Prepared:
    """BF16 x MXFP4: halves of W13 swapped to [W3; W1], weights and scales alike, then interleaved for the mixed
    GEMM."""

    def interleaved(data: torch.Tensor) -> torch.Tensor:
        return library.interleave_weights(data.contiguous(), "fp4")

    def scales(data: torch.Tensor) -> torch.Tensor:
        return library.interleave_scales(data.contiguous())

    read = _Streamed(weights, experts, device)
    return Prepared(
        fc1=read("w13_weight", lambda data: interleaved(up_first(data))),
        fc2=read("w2_weight", interleaved),
        scales=[
            read("w13_weight_scale", lambda data: scales(up_first(data))),
            read("w2_weight_scale", scales),
        ],
    )


def mxfp8(library: Library, weights: LoadedWeights, experts: int, device: str) -> Prepared:
    """MXFP8 x MXFP4 (SM100, SM120): halves swapped as above; weights stay in order and are seen as int64, scales are
    swizzled in tiles of 128 rows by 4 and seen as int32; the global scales are ones."""

    def swizzled(data: torch.Tensor) -> torch.Tensor:
        return library.block_scale_interleave(data.contiguous()).reshape(data.shape).view(torch.int32)

    read = _Streamed(weights, experts, device)
    ones = torch.ones(experts, dtype=torch.float32, device=device)
    return Prepared(
        fc1=read("w13_weight", up_first).view(torch.int64),
        fc2=read("w2_weight", lambda data: data).view(torch.int64),
        scales=[
            read("w13_weight_scale", lambda data: swizzled(up_first(data))),
            ones,
            read("w2_weight_scale", swizzled),
            ones,
        ],
    )


class _Streamed:
    """One parameter, read and rearranged some experts at a time."""

    def __init__(self, weights: LoadedWeights, experts: int, device: str):
        self._weights, self._experts, self._device = weights, experts, device

    def __call__(self, parameter: str, arrange: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        parts = []
        for first in range(0, self._experts, _AT_ONCE):
            last = min(first + _AT_ONCE, self._experts)
            parts.append(arrange(self._weights.read(parameter, first, last, self._device)))
        return torch.cat(parts)


def up_first(w13: torch.Tensor) -> torch.Tensor:
    """(E, 2K, n) as loaded, [W1 gate; W3 up], to the kernel's [W3 up; W1 gate]."""
    gate, up = w13.chunk(2, dim=1)
    return torch.cat([up, gate], dim=1)
