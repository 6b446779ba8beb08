"""The library: NVFP4 weights, quantised and multiplied with BF16 activations, plain PyTorch on whatever device.

Stands for your own code. It knows nothing of the harness.
"""

from __future__ import annotations

import torch

_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
#: Where the next code begins; on such a value itself the even code is taken.
_MIDDLE = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])


def to_e2m1(x: torch.Tensor) -> torch.Tensor:
    """float -> codes 0..15, ties to even."""
    size = x.abs().clamp(max=6)
    code = torch.bucketize(size, _MIDDLE)  # on a tie: the lower code
    tie = size == _MIDDLE[code.clamp(max=6)]
    return (code + (tie & (code % 2 == 1)).long() + 8 * torch.signbit(x).long()).to(torch.uint8)


def from_e2m1(codes: torch.Tensor) -> torch.Tensor:
    value = _E2M1[(codes & 7).long()]
    return torch.where(codes > 7, -value, value)


def quantize(x: torch.Tensor, global_scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(M, K) -> codes (M, K / 2), E4M3 scales (M, K / 16) as bytes, and the global scale that multiplies."""
    if x.shape[-1] % 16:
        raise ValueError(f"K is {x.shape[-1]}; a multiple of 16 was due")
    blocks = x.float().unflatten(-1, (-1, 16))
    amax = blocks.abs().amax(-1)
    if global_scale is None:
        global_scale = float(amax.max() / 2688) or 1.0
    scales = (amax / 6 / global_scale).clamp(max=448).to(torch.float8_e4m3fn)
    step = scales.float().unsqueeze(-1) * global_scale
    codes = to_e2m1(torch.where(step > 0, blocks / step, blocks * 0)).flatten(-2)
    return codes[..., 0::2] | codes[..., 1::2] << 4, scales.view(torch.uint8), global_scale


def dequantize(codes: torch.Tensor, scales: torch.Tensor, global_scale: float) -> torch.Tensor:
    """(..., K / 2) and (..., K / 16) -> float32 (..., K)."""
    elements = from_e2m1(torch.stack((codes & 0xF, codes >> 4), -1).flatten(-2)).unflatten(-1, (-1, 16))
    return (elements * scales.view(torch.float8_e4m3fn).float().unsqueeze(-1)).flatten(-2) * global_scale


class Experts:
    """Weights of all experts, kept dequantised: (E, N, K)."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, global_scales: torch.Tensor):
        self.weights = dequantize(codes, scales, 1.0) * global_scales.view(-1, 1, 1)

    def multiply(self, x: torch.Tensor, offsets: torch.Tensor, sizes: torch.Tensor, out: torch.Tensor) -> None:
        """out[o : o + m] = x[o : o + m] @ weights[e]^T for each expert's rows; other rows of `out` are left alone."""
        for expert, (start, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
            rows = slice(start, start + size)
            out[rows] = (x[rows].float() @ self.weights[expert].mT).to(out.dtype)
