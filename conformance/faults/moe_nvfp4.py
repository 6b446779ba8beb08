"""Faults of a MoE kernel that quantises input and activation to NVFP4. Each returns units of the global scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from conformance.faults.kernel import MoeFault

if TYPE_CHECKING:
    import torch


def quantised(
    x: torch.Tensor, global_scale: float, block: int = 16, rounding: Literal["nearest", "down", "one up"] = "nearest"
) -> torch.Tensor:
    """What is left of x (M, K): right, unless `block` or `rounding` (of the block scales) say otherwise."""
    import torch

    blocks = x.float().unflatten(-1, (-1, block))
    wanted = (blocks.abs().amax(-1, keepdim=True) / 6 / global_scale).clamp(max=448)
    code = wanted.to(torch.float8_e4m3fn).view(torch.uint8)
    if rounding == "down":
        code = torch.where((code.view(torch.float8_e4m3fn).float() > wanted) & (code > 0), code - 1, code)
    if rounding == "one up":
        code = torch.where((code > 0) & (code < 126), code + 1, code)
    scale = code.view(torch.float8_e4m3fn).float()
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=x.device)
    quotient = torch.where(scale == 0, 0.0, blocks / (scale * global_scale)).clamp(-6, 6)
    nearest = levels[(quotient.abs().unsqueeze(-1) - levels).abs().argmin(-1)]
    return (torch.copysign(nearest, quotient) * scale).flatten(-2)


def _doubled(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    """The activation is quantised by half of the scale that its product is multiplied with."""
    return quantised(x, global_scale / 2 if stage == "activation" else global_scale)


def _inverted(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    return quantised(x, 1 / global_scale)


def _scale_down(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    return quantised(x, global_scale, rounding="down")


def _scale_one_up(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    return quantised(x, global_scale, rounding="one up" if stage == "activation" else "nearest")


def _not_requantised(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    return x / global_scale if stage == "activation" else quantised(x, global_scale)


def _input_not_quantised(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    return x / global_scale if stage == "input" else quantised(x, global_scale)


def _blocks_of_32(x: torch.Tensor, stage: str, global_scale: float) -> torch.Tensor:
    return quantised(x, global_scale, block=32)


def _quiet_left_out(
    gate: torch.Tensor, up: torch.Tensor, limit: float | None, alpha: float, beta: float
) -> torch.Tensor:
    """Channels whose gate or up is below 1 / 32 of the largest of its sixteen are left out. Beside that largest their
    codes would be 0 anyway."""
    from references import swiglu

    quiet = [
        (x.abs().unflatten(-1, (-1, 16)) * 32 < x.abs().unflatten(-1, (-1, 16)).amax(-1, keepdim=True)).flatten(-2)
        for x in (gate, up)
    ]
    return swiglu.swiglu(gate, up, limit, alpha, beta).masked_fill(quiet[0] | quiet[1], 0.0)


_SCHEME = "nvfp4"
doubled = MoeFault(quantise=_doubled, scheme=_SCHEME)
inverted = MoeFault(quantise=_inverted, scheme=_SCHEME)
scale_down = MoeFault(quantise=_scale_down, scheme=_SCHEME)
scale_one_up = MoeFault(quantise=_scale_one_up, scheme=_SCHEME)
not_requantised = MoeFault(quantise=_not_requantised, scheme=_SCHEME)
input_not_quantised = MoeFault(quantise=_input_not_quantised, scheme=_SCHEME)
blocks_of_32 = MoeFault(quantise=_blocks_of_32, scheme=_SCHEME)
quiet_left_out = MoeFault(activation=_quiet_left_out)
