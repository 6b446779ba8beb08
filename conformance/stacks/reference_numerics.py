"""The reference stack's own number formats: on bits, where `references/` uses tables and PyTorch's casts."""

from __future__ import annotations

from functools import cache

import torch

_QUIET_NAN = 0x7FC00000
#: vLLM's moe_sum adds so many slots in BF16, and more of them by torch's sum.
_MARLIN_IN_BF16 = 4


def scales(bytes_: torch.Tensor) -> torch.Tensor:
    """E8M0 -> float32: the byte is a float's exponent field, but for both ends."""
    bits = bytes_.int() << 23
    bits = torch.where(bytes_ == 0, 1 << 22, bits)
    return torch.where(bytes_ == 255, _QUIET_NAN, bits).view(torch.float32)


@cache
def _pairs(device: torch.device) -> torch.Tensor:
    """Both elements of every byte as float32, seen as one int64: (256,).

    A code's three low bits, put where a float32 keeps the lowest exponent bits and the highest mantissa bit, make the
    element times 2^-126, the subnormal one included.
    """
    byte = torch.arange(256, dtype=torch.int32, device=device)
    code = torch.stack((byte & 15, byte >> 4), dim=1)
    magnitude = ((code & 7) << 22).view(torch.float32) * 2.0**126
    return torch.where(code > 7, -magnitude, magnitude).view(torch.int64).flatten()


def weights(packed: torch.Tensor, scale_bytes: torch.Tensor) -> torch.Tensor:
    """MXFP4 (rows, bytes) and its scales (rows, bytes / 16) -> float32 (rows, 2 bytes)."""
    rows, groups = scale_bytes.shape
    elements = _pairs(packed.device).index_select(0, packed.flatten().int()).view(torch.float32)
    return elements.view(rows, groups, 32).mul_(scales(scale_bytes)[:, :, None]).flatten(1)


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    """float32 rounded to the nearest BF16 (ties to even), still as float32. NaN stays NaN."""
    bits = x.contiguous().view(torch.int32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & ~0xFFFF
    return torch.where(x.isnan(), x, rounded.view(torch.float32))


def to_mxfp8(x: torch.Tensor) -> torch.Tensor:
    """float32 (rows, n) quantised to MXFP8 in groups of 32 and decoded again, as float32.

    The power of two is the smallest one p with amax / 448 <= p; elements keep four significant bits, in steps of
    2^-9 p at least. A NaN spoils itself alone: hardware maxima pass it over.
    """
    grouped = x.view(x.shape[0], -1, 32)
    most = grouped.abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(-1, keepdim=True)
    mantissa, exponent = torch.frexp(most * most.new_full((), 1 / 448))
    power = (exponent - (mantissa == 0.5).int()).clamp(max=127)
    power = torch.where(most.isinf(), 127, power)
    inside = torch.ldexp(grouped.double(), -power).clamp(-448, 448)
    _, size = torch.frexp(inside)
    step = torch.exp2((size - 4).clamp(min=-9).double())
    coded = (inside / step).round() * step
    coded = torch.where((power <= -127) & ~inside.isnan(), 0.0, coded)
    return torch.ldexp(coded, power.double()).float().view(x.shape)


def to_nvfp4(x: torch.Tensor, global_scale: float) -> torch.Tensor:
    """float32 (rows, n) quantised to NVFP4 in blocks of 16 and decoded, in units of the global scale, as float32.

    A NaN or an infinity makes its block's scale NaN, and so all of the block.
    """
    blocks = x.view(x.shape[0], -1, 16)
    most = blocks.abs().amax(-1, keepdim=True)
    scale = torch.where(most.isfinite(), _nearest(most / 6 / global_scale, -9, 4).clamp(max=448), torch.nan)
    coded = _nearest((blocks / (scale * global_scale)).clamp(-6, 6), -1, 2)
    return torch.where(scale == 0, 0.0, coded * scale).view(x.shape)


def _nearest(x: torch.Tensor, smallest: int, bits: int) -> torch.Tensor:
    """To `bits` significant bits (ties to even), in steps of 2^smallest at least."""
    _, size = torch.frexp(x)
    step = torch.exp2((size - bits).clamp(min=smallest).float())
    return (x / step).round() * step


def slot_sum(slots: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """slots (M, k, H), weights (M, k) -> (M, H), all float32: weighted and added in slot order."""
    total = torch.zeros_like(slots[:, 0])
    for slot in range(slots.shape[1]):
        total = total + weights[:, slot, None] * slots[:, slot]
    return total


def marlin_sum(slots: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """slots (M, k, H), weights (M, k) -> (M, H), all float32: weighted and added as Marlin and vLLM's moe_sum do."""
    weighted = to_bf16(to_bf16(weights)[:, :, None] * slots)
    if slots.shape[1] > _MARLIN_IN_BF16:
        return to_bf16(weighted.sum(1))
    total = torch.zeros_like(weighted[:, 0])
    for part in weighted.unbind(1):
        total = to_bf16(total + part)
    return total
