"""MXFP4 and MXFP8 against values written out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from references import mxfp4, mxfp8

#: OCP MX v1.0, table of E2M1
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def _bytes(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def test_every_code_the_low_nibble_first():
    for code in range(16):
        value = math.copysign(E2M1[code % 8], -1 if code > 7 else 1)
        low, high = mxfp4.decode_codes(_bytes(code, code << 4)).tolist()[::3]
        assert (low, high) == (value, value)
        assert math.copysign(1, low) == math.copysign(1, value), "minus zero keeps its sign"
    assert mxfp4.decode_codes(_bytes(0x72, 0xF1)).tolist() == [1.0, 6.0, 0.5, -6.0]


@pytest.mark.parametrize(
    ("byte", "value"), [(0, 2.0**-127), (1, 2.0**-126), (126, 0.5), (127, 1.0), (130, 8.0), (254, 2.0**127)]
)
def test_scales(byte, value):
    for dtype in (torch.float32, torch.float64):
        assert mxfp4.decode_scales(_bytes(byte), dtype).item() == value


def test_the_scale_ff_is_nan_even_over_zeros():
    assert mxfp4.dequantize(_bytes(*[0] * 16)[None], _bytes(255)[None]).isnan().all()


def test_a_scale_counts_for_32_elements():
    packed = torch.full((2, 32), 0x22, dtype=torch.uint8)
    scales = torch.tensor([[127, 128], [120, 0]], dtype=torch.uint8)
    found = mxfp4.dequantize(packed, scales)
    assert found.shape == (2, 64)
    assert found[0].tolist() == [1.0] * 32 + [2.0] * 32
    assert found[1].tolist() == [2.0**-7] * 32 + [2.0**-127] * 32


@pytest.mark.parametrize(
    ("amax", "byte"),
    [
        (448.0, 127),  # just fits a scale of 1
        (448.0 * 1.01, 128),  # no saturation: rounded up
        (1.0, 119),  # 1/448 = 2^-8.8: up to 2^-8
        (1.75, 119),  # 1.75/448 = 2^-8 exactly
        (1.76, 120),
        (2.0**-120, 0),  # below 2^-127 after division
        (3.0e38, 127 + 120),
        (math.inf, 254),
        (math.nan, 0),
    ],
)
def test_mxfp8_scales_round_up(amax, byte):
    x = torch.zeros(1, 32)
    x[0, 7] = amax
    assert mxfp8.quantize(x).scales.tolist() == [[byte]]


@pytest.mark.parametrize(
    ("value", "left"),
    [(448.0, 448.0), (15.0, 15.0), (17.0, 16.0), (19.0, 20.0), (2.0**-9, 2.0**-9), (2.0**-10, 0.0), (-9.4, -9.0)],
)
def test_mxfp8_elements_round_to_nearest_even(value, left):
    """Beside 448, so that the scale is 1: four significant bits, steps of 2^-9 at the bottom."""
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 31] = 448.0, value
    assert mxfp8.rounded(x)[0, 31].item() == left


def test_mxfp8_never_saturates_and_keeps_groups_apart():
    x = torch.zeros(1, 64)
    x[0, :32], x[0, 32:] = 1000.0, 0.001
    left = mxfp8.rounded(x)
    assert ((left - x).abs() <= x.abs() * 2.0**-4).all(), "E4M3's unit roundoff"


def test_scale_zero_makes_zeros():
    assert mxfp8.rounded(torch.full((1, 32), 2.0**-125)).tolist() == [[0.0] * 32]


def test_a_nan_stays_a_nan_and_spoils_no_other():
    x = torch.ones(1, 32)
    x[0, 3] = math.nan
    assert mxfp8.rounded(x).isnan().nonzero().tolist() == [[0, 3]]
