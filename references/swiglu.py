"""SwiGLU with a limit, as DeepSeek-V4 and gpt-oss define it.

    gate = min(gate, limit)          clamped above only
    up   = clamp(up, -limit, limit)  clamped on both sides
    out  = gate * sigmoid(alpha * gate) * (up + beta)

Both are clamped *before* SiLU. Source: DeepSeek-V4 `swiglu_limit`; FlashInfer's SwigluBias, whose alpha 1 and beta 0
equal its Swiglu bit for bit (measured on SM90).
"""

from __future__ import annotations

import torch


def clamp(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    if limit is None:
        return gate, up
    return gate.clamp(max=limit), up.clamp(-limit, limit)


def factors(
    gate: torch.Tensor, up: torch.Tensor, limit: float | None = None, alpha: float = 1.0, beta: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(SiLU of the clamped gate, clamped up + beta): what SwiGLU multiplies."""
    gate, up = clamp(gate, up, limit)
    return gate * torch.sigmoid(alpha * gate), up + beta


def swiglu(
    gate: torch.Tensor, up: torch.Tensor, limit: float | None = None, alpha: float = 1.0, beta: float = 0.0
) -> torch.Tensor:
    """gate, up (..., I) -> (..., I). NaN stays NaN."""
    silu, factor = factors(gate, up, limit, alpha, beta)
    return silu * factor


def slopes(
    gate: torch.Tensor, up: torch.Tensor, limit: float | None = None, alpha: float = 1.0, beta: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(d out / d gate, d out / d up): how an error of either goes on. Zero where the clamp holds it back."""
    free_gate = torch.ones_like(gate) if limit is None else (gate <= limit).to(gate.dtype)
    free_up = torch.ones_like(up) if limit is None else (up.abs() <= limit).to(up.dtype)
    gate, up = clamp(gate, up, limit)
    s = torch.sigmoid(alpha * gate)
    return free_gate * s * (1 + alpha * gate * (1 - s)) * (up + beta), free_up * gate * s
