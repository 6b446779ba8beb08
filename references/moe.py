"""The routed experts of one MoE layer, exactly: FP64 (or FP32) over the experts that are routed to, and no others.

    y = sum over k of weight_k * W2_k swiglu(W1_k x, W3_k x)

An expert's weights are decoded a block of channels at a time and dropped again: 256 decoded experts would be 26 GB, and
a decoded block of 128 channels stays in a CPU's cache until it has been multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from references import mxfp4
from references.swiglu import swiglu


class Packed(NamedTuple):
    """Channels [start, stop) of one expert as stored, uint8: w1, w3 (n, H / 2), w2 (H, n / 2), scales per 32."""

    w1: torch.Tensor
    w1_scale: torch.Tensor
    w3: torch.Tensor
    w3_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor


#: (expert, start, stop) -> its packed weights of those channels of the intermediate axis.
Experts = Callable[[int, int, int], Packed]


class Channels(NamedTuple):
    """The same, decoded: w1, w3 (n, H), w2 (H, n)."""

    w1: torch.Tensor
    w3: torch.Tensor
    w2: torch.Tensor


def decoded(packed: Packed, dtype: torch.dtype, scratch: mxfp4.Scratch | None = None) -> Channels:
    return Channels(
        mxfp4.dequantize(packed.w1, packed.w1_scale, dtype, scratch, "w1"),
        mxfp4.dequantize(packed.w3, packed.w3_scale, dtype, scratch, "w3"),
        mxfp4.dequantize(packed.w2, packed.w2_scale, dtype, scratch, "w2"),
    )


def routed(ids: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """(expert, tokens, slots) for each expert that anything is routed to. Negative ids are nobody's."""
    for expert in torch.unique(ids).tolist():
        if expert >= 0:
            tokens, slots = torch.nonzero(ids == expert, as_tuple=True)
            yield expert, tokens, slots


def blocks(channels: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, channels, size):
        yield start, min(start + size, channels)


def moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    experts: Experts,
    channels: int,
    limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: torch.dtype = torch.float64,
    block: int = 128,
) -> torch.Tensor:
    """x (M, H), ids and weights (M, k) -> (M, H) in `dtype`. `channels`: the intermediate size that experts have."""
    y, scratch = torch.zeros(x.shape, dtype=dtype, device=x.device), mxfp4.Scratch()
    for expert, tokens, slots in routed(ids):
        inputs = x[tokens].to(dtype)
        z = torch.zeros_like(inputs)
        for start, stop in blocks(channels, block):
            w = decoded(experts(expert, start, stop), dtype, scratch)
            z += swiglu(inputs @ w.w1.T, inputs @ w.w3.T, limit, alpha, beta) @ w.w2.T
        y.index_add_(0, tokens, z * weights[tokens, slots, None].to(dtype))
    return y
