"""A token's slots summed to its output, as FlashInfer's CUTLASS MoE does it on SM90, SM100 and SM120, and as Marlin.

`unfused` (use_fused_finalize=False): each slot's GEMM2 result is stored as BF16; a kernel of its own sums
weight * value over the slots in FP32, in slot order, each step one multiply-add, and rounds once to BF16.

`fused` (FINALIZE, the default): the output begins as zero; each slot's thread adds BF16(weight * accumulator) to it
with `red.global.add.noftz.bf16`, in whatever order threads come: every sum is rounded to BF16. That is no value but
an interval, and two runs of one call may differ.
Source: FlashInfer 0.7.2, read; not compared with any SM100 or SM120 output.

`stepped` (Marlin in vLLM): the weight is rounded to BF16, and so is its product with the slot's value, which is stored;
vLLM's moe_sum then adds up to `FEW` of them in BF16, in slot order, and more of them by torch's sum, in FP32.
Source: `moe_sum` in vLLM's `moe_align_sum_kernels.cu` at 45c1582e9, read; 0.33.0 at six slots, measured on an H200.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

#: BF16's unit roundoff: 8 significant bits.
UNIT = 2.0**-8
#: The most slots that vLLM's moe_sum adds in BF16.
FEW = 4


class Spread(NamedTuple):
    """A right kernel's output lies within `radius` of `value`, both (M, H) FP64."""

    value: torch.Tensor
    radius: torch.Tensor


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Rounded to BF16 once, by way of FP32 as kernels go, in x's own type."""
    return x.float().to(torch.bfloat16).to(x.dtype)


def unfused(slots: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """slots (M, k, H) BF16 values in FP64, weights (M, k) -> (M, H) BF16 values in FP64.

    FP64 holds weight * value exactly, so rounding the sum to FP32 is a fused multiply-add but for double rounding.
    """
    total = slots.new_zeros((slots.shape[0], slots.shape[2]))
    for slot in range(slots.shape[1]):
        step = weights[:, slot, None].double() * slots[:, slot] + total
        total = step.float().double()
    return bf16(total)


def stepped(slots: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """slots (M, k, H) BF16 values in FP64, weights (M, k) -> (M, H) BF16 values in FP64."""
    parts = bf16(bf16(weights[:, :, None].double()) * slots)
    if slots.shape[1] > FEW:
        return bf16(parts.sum(1))
    total = torch.zeros_like(slots[:, 0])
    for slot in range(slots.shape[1]):
        total = bf16(total + parts[:, slot])
    return total


def fused(slots: torch.Tensor, weights: torch.Tensor) -> Spread:
    """slots (M, k, H): FP32 accumulators in FP64. k terms take k - 1 rounded additions, the first being to zero: each
    is off by UNIT of its result at most, so all together by sum|terms| * ((1 + UNIT)^(k - 1) - 1)."""
    terms = bf16(weights[:, :, None].double() * slots)
    additions = (terms != 0).sum(1) - 1
    growth = (1 + UNIT) ** additions.clamp(min=0).double() - 1
    return Spread(terms.sum(1), terms.abs().sum(1) * growth)
