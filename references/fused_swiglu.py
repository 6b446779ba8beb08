"""A GEMM that ends in SwiGLU, and how far a right kernel may be off.

gate and up come with the errors of their sums, which SwiGLU's slopes pass on:

    |y - exact| <= u |exact| + e |exact| + c (S_gate |d/dgate| + S_up |d/dup|) + u_h (|gate d/dgate| + |up d/dup|)

u is the output's unit roundoff, c that of sums, u_h 2^-8 where gate and up are rounded to BF16 on the way and 0 where
not, e 2^-18 for an exponential and a division by fast approximations.
"""

from __future__ import annotations

import torch

from references import swiglu
from references.grouped_gemm import ROUNDOFF, Bounded

_FAST_MATH = 2.0**-18
_SMALLEST = 2.0**-120


def bounded(
    a: torch.Tensor, w: torch.Tensor, limit: float | None, output: str, accumulation: float, rounded: bool
) -> Bounded:
    """a (M, K), w (2 I, K): [gate; up], FP64, global scales included -> (M, I)."""
    gate, up = (a @ w.T).chunk(2, dim=1)
    of_gate, of_up = (a.abs() @ w.abs().T).chunk(2, dim=1)
    exact = swiglu.swiglu(gate, up, limit)
    by_gate, by_up = (slope.abs() for slope in swiglu.slopes(gate, up, limit))
    radius = (ROUNDOFF[output] + _FAST_MATH) * exact.abs() + accumulation * (of_gate * by_gate + of_up * by_up)
    if rounded:
        radius += 2.0**-8 * (gate.abs() * by_gate + up.abs() * by_up)
    return Bounded(exact, radius + _SMALLEST)
