"""Grouped GEMM and linear layers on quantised operands, in FP64, and how far a right kernel may be off.

    out[o_e + i, n] = round( ga_e * gb_e * sum_k a[o_e + i, k] b[e, n, k] )       sums in FP32
    |y - exact| <= u |exact| + c * S + u_smallest,    S = sum_k |a_k b_k|

u is the unit roundoff of the output (2^-8 BF16, 2^-24 FP32), c that of the sum. Products of two E2M1 elements and of
two E4M3 scales are exact in FP32, so whatever exceeds c * S is an error, and no quantisation noise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

#: Unit roundoff and smallest positive number of output types.
ROUNDOFF = {"bfloat16": 2.0**-8, "float32": 2.0**-24}
_SMALLEST = 2.0**-133


class Bounded(NamedTuple):
    """`exact` and `radius`, FP64 (M, N): a right result lies within."""

    exact: torch.Tensor
    radius: torch.Tensor


def matmul(a: torch.Tensor, b: torch.Tensor, output: str, accumulation: float) -> Bounded:
    """a (M, K), b (N, K): FP64 values of the operands, global scales included."""
    exact = a @ b.T
    return Bounded(exact, ROUNDOFF[output] * exact.abs() + accumulation * (a.abs() @ b.abs().T) + _SMALLEST)


def grouped(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: list[int],
    sizes: list[int],
    output: str = "bfloat16",
    accumulation: float = 2.0**-20,
) -> Bounded:
    """a (M, K), b (E, N, K). Rows of nobody are NaN in `exact`."""
    exact = a.new_full((a.shape[0], b.shape[1]), torch.nan)
    radius = torch.zeros_like(exact)
    for expert, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        rows = slice(start, start + size)
        exact[rows], radius[rows] = matmul(a[rows], b[expert], output, accumulation)
    return Bounded(exact, radius)
