"""Single numbers: E2M1, E4M3 (FN) and E8M0 codes, by tables of values and the nearest of them.

Source: OCP Microscaling Formats v1.0, 5.3.3 (E2M1: no Inf, no NaN) and 5.4.1 (E8M0: 0x00 is 2^-127, 0xFF is NaN, no
zero); OCP 8-bit Floating Point v1.0 (E4M3: largest 448 = 0x7E, smallest 2^-9 = 0x01, 0x7F is NaN, no Inf). Rounding
is to nearest, ties to even codes, as PTX `cvt.rn.satfinite.e2m1x2` and `.e4m3x2` have it.
"""

from __future__ import annotations

from functools import cache

import torch

NAN_E4M3 = 0x7F
NAN_E8M0 = 0xFF


@cache
def e2m1_grid() -> torch.Tensor:
    """The eight magnitudes, FP64: 0, 0.5, 1, 1.5, 2, 3, 4, 6."""
    return torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


@cache
def _e2m1_values() -> torch.Tensor:
    """Of codes 0 to 15."""
    return torch.cat([e2m1_grid(), -e2m1_grid()])


@cache
def e4m3_grid() -> torch.Tensor:
    """The 127 magnitudes of codes 0x00 to 0x7E, FP64: m / 8 * 2^-6 below 2^-6, else (1 + m / 8) * 2^(e - 7)."""
    code = torch.arange(NAN_E4M3, dtype=torch.float64)
    exponent, mantissa = (code / 8).floor(), code % 8
    return torch.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * torch.exp2(exponent - 7))


def nearest(x: torch.Tensor, grid: torch.Tensor, ties: str = "even") -> torch.Tensor:
    """x >= 0 in FP64 -> index of the nearest value of an ascending grid, the last one for what lies beyond.

    `ties`: to `even` indices, `away` from zero, or `down`.
    """
    middle = (grid[:-1] + grid[1:]) / 2
    above = torch.searchsorted(middle, x.contiguous(), right=ties == "away")
    if ties != "even":
        return above
    on_a_tie = (above < len(middle)) & (x == middle[above.clamp(max=len(middle) - 1)])
    return above + (on_a_tie & (above % 2 == 1)).long()


def first_nearest(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """As quantisers that look for the smallest distance in a table do it in float32: the first of equal distances. A
    NaN and an Inf are equally far from everything."""
    distance = (x.float().abs()[..., None] - grid.float()).abs()
    return distance.nan_to_num(nan=torch.inf).argmin(-1)


def encode_e2m1(x: torch.Tensor, ties: str = "even") -> torch.Tensor:
    """-> uint8 codes 0..15; negatives that round to zero are 8. Saturates at 6. NaN: any code.

    `ties`: `even`, `away`, or `first` (see `first_nearest`).
    """
    y = x.double()
    magnitude = first_nearest(x, e2m1_grid()) if ties == "first" else nearest(y.abs(), e2m1_grid(), ties)
    return (magnitude + 8 * torch.signbit(y).long()).to(torch.uint8)


def encode_e4m3(x: torch.Tensor) -> torch.Tensor:
    """-> uint8 codes, saturating at 448; NaN is 0x7F."""
    y = x.double()
    magnitude = nearest(y.abs(), e4m3_grid()) + 128 * torch.signbit(y).long()
    return torch.where(y.isnan(), NAN_E4M3, magnitude).to(torch.uint8)


def decode_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes 0..15 -> FP64; 8 is -0."""
    return _e2m1_values().index_select(0, codes.flatten().int()).view(codes.shape)


def decode_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """uint8 -> FP64."""
    low = (codes & 0x7F).long()
    magnitude = e4m3_grid()[low.clamp(max=NAN_E4M3 - 1)].masked_fill(low == NAN_E4M3, torch.nan)
    return torch.where(codes > 0x7F, -magnitude, magnitude)


def decode_e8m0(codes: torch.Tensor) -> torch.Tensor:
    """uint8 -> FP64: 2^(code - 127)."""
    return torch.exp2(codes.double() - 127).masked_fill(codes == NAN_E8M0, torch.nan)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """(..., K) -> (..., K / 2): the even element in the low nibble."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """(..., K / 2) -> (..., K)."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
