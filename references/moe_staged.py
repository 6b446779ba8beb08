"""The routed experts with a rounding wherever a named kernel rounds.

`bf16`: SM90, BF16 x MXFP4. gate and up are stored as BF16, so is the activation; accumulation in FP32.
`mxfp8`: SM100 and SM120, MXFP8 x MXFP4. x is quantised to MXFP8, GEMM1 stored as BF16, the activation rounded to BF16
and quantised to MXFP8 again. Source: FlashInfer 0.7.2's CUTLASS MoE, read and (SM90) measured.
Both store each slot's GEMM2 result as BF16, sum slots in FP32, in slot order, and round once to BF16; what FINALIZE
makes of them instead is in `references/finalize.py`.
`nvfp4`: x is quantised to NVFP4 by the input's global scale, the activation, rounded to BF16, by its own: both static.
Weights are what they are, MXFP4 or NVFP4; GEMM1 is stored as BF16. Source: vLLM 0.33.0, `flashinfer_cutedsl` and
`flashinfer_cutlass` with `nvfp4` (`a1_gscale`, `a2_gscale` are the reciprocals); NVFP4 contract, S8 and S9.
`bf16_steps`: Marlin, BF16 x MXFP4, every step stored as BF16: gate and up, SiLU(gate), its product with up, GEMM2's
result, the routing weight, their product; how slots are added is `finalize.stepped`.
Source: vLLM, `marlin_template.h` (topk weights), `activation_kernels.cu`, `moe_align_sum_kernels.cu`.

Requantisation takes amax * (an approximate reciprocal of 448): where amax is 1.75 * 2^n a kernel may choose the next
scale. Here it is exactly 1 / 448 in FP32, as at the input, where the kernels multiply by that constant themselves.
Accumulation is in FP64 here: an FP32 sum differs from it by far less than any rounding that follows.
"""

from __future__ import annotations

from typing import Literal

import torch

from references import finalize, mxfp8, nvfp4
from references.finalize import bf16
from references.moe import Experts, blocks, decoded, routed
from references.nvfp4 import GlobalScales
from references.swiglu import factors

Scheme = Literal["bf16", "mxfp8", "nvfp4", "bf16_steps"]
#: For the schemes that have no global scales.
PLAIN = GlobalScales()


def staged_input(x: torch.Tensor, scheme: Scheme, scales: GlobalScales = PLAIN) -> torch.Tensor:
    """x as GEMM1 sees it."""
    if scheme == "nvfp4":
        return nvfp4.rounded(x, scales.input)
    return mxfp8.rounded(x) if scheme == "mxfp8" else x


def staged_activation(
    gate: torch.Tensor,
    up: torch.Tensor,
    scheme: Scheme,
    limit: float | None,
    alpha: float = 1.0,
    beta: float = 0.0,
    scales: GlobalScales = PLAIN,
) -> torch.Tensor:
    """gate, up (..., I) -> the activation as GEMM2 sees it. For `mxfp8` I is a multiple of 32, for `nvfp4` of 16."""
    silu, factor = factors(bf16(gate), bf16(up), limit, alpha, beta)
    h = bf16((bf16(silu) if scheme == "bf16_steps" else silu) * factor)
    if scheme == "nvfp4":
        return nvfp4.rounded(h, scales.activation)
    return mxfp8.rounded(h) if scheme == "mxfp8" else h


def moe_staged(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    experts: Experts,
    channels: int,
    scheme: Scheme,
    limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    block: int = 512,
    scales: GlobalScales = PLAIN,
) -> torch.Tensor:
    """As `references.moe.moe`; the result holds BF16 values in FP64. `block` is a multiple of 32."""
    slots = staged_slots(x, ids, experts, channels, scheme, limit, alpha, beta, block, scales)
    return (finalize.stepped if scheme == "bf16_steps" else finalize.unfused)(slots, weights)


def staged_slots(
    x: torch.Tensor,
    ids: torch.Tensor,
    experts: Experts,
    channels: int,
    scheme: Scheme,
    limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    block: int = 512,
    scales: GlobalScales = PLAIN,
) -> torch.Tensor:
    """Each slot's GEMM2 result as stored: (M, k, H) BF16 values in FP64; zero for nobody's slots."""
    found = torch.zeros((*ids.shape, x.shape[1]), dtype=torch.float64, device=x.device)
    for expert, tokens, slots in routed(ids):
        inputs = staged_input(x[tokens].double(), scheme, scales)
        z = torch.zeros_like(inputs)
        for start, stop in blocks(channels, block):
            w = decoded(experts(expert, start, stop), torch.float64)
            h = staged_activation(inputs @ w.w1.T, inputs @ w.w3.T, scheme, limit, alpha, beta, scales)
            z += h @ w.w2.T
        found[tokens, slots] = bf16(z)
    return found
