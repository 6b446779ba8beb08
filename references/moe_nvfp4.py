"""The routed experts in NVFP4 x NVFP4, with a rounding wherever such a kernel rounds.

    x      -> NVFP4, by the input's global scale        (static, or amax / 2688 of all tokens)
    GEMM1  -> float32 sums, global scales applied -> BF16 (`rounded`), or not
    SwiGLU -> BF16 -> NVFP4, by the activation's global scale
    GEMM2  -> float32 -> BF16 a slot; slots are summed in float32 and rounded once

Blocks of 16 along H and along I. A rank's share of I is a multiple of 16, so that no block is cut. Source: vLLM
0.33.0, `flashinfer_cutlass_moe` with `nvfp4` (`a1_gscale`, `a2_gscale` are the reciprocals); NVFP4 contract, S8 and
S9. Accumulation is in FP64 here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from references import finalize, nvfp4
from references.finalize import bf16
from references.moe import routed
from references.swiglu import swiglu


class Expert(NamedTuple):
    """One expert decoded, FP64, global scales included: w1, w3 (I, H), w2 (H, I)."""

    w1: torch.Tensor
    w3: torch.Tensor
    w2: torch.Tensor


def activation(
    x: torch.Tensor, expert: Expert, activation_scale: float, limit: float | None, rounded: bool = True
) -> torch.Tensor:
    """x (M, H) as GEMM1 sees it -> (M, I) as GEMM2 sees it."""
    gate, up = x @ expert.w1.T, x @ expert.w3.T
    if rounded:
        gate, up = bf16(gate), bf16(up)
    return nvfp4.rounded(bf16(swiglu(gate, up, limit)), activation_scale)


def moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    experts: list[Expert],
    input_scale: float,
    activation_scale: float,
    limit: float | None = None,
    rounded: bool = True,
) -> torch.Tensor:
    """x (M, H), ids and weights (M, k), -1 for nobody -> (M, H), BF16 values in FP64."""
    seen = nvfp4.rounded(x, input_scale)
    slots = torch.zeros((*ids.shape, x.shape[1]), dtype=torch.float64)
    for expert, tokens, places in routed(ids):
        h = activation(seen[tokens], experts[expert], activation_scale, limit, rounded)
        slots[tokens, places] = bf16(h @ experts[expert].w2.T)
    return finalize.unfused(slots, weights)
