"""252 codes survive a copy in every dtype, and a right conversion between dtypes."""

from __future__ import annotations

import pytest
import torch

from conformance.provenance import codes
from conformance.stacks.model_protocol import ELEMENT

ALL = torch.arange(1, codes.COUNT + 1)
SAME = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U8": torch.uint8,
    "I8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}


def _elements(dtype: str, kind: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(codes.encode(ALL, dtype)), dtype=torch.uint8).view(kind)


def _codes(data: torch.Tensor) -> torch.Tensor:
    name = str(data.dtype).removeprefix("torch.")
    return codes.decode(codes.raw(data.view(torch.uint8), name, ELEMENT[name]), name)


@pytest.mark.parametrize("dtype", SAME)
def test_a_copy_keeps_every_code(dtype):
    assert torch.equal(_codes(_elements(dtype, SAME[dtype])).to(torch.int64), ALL)


@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        ("BF16", torch.float32),
        ("F32", torch.bfloat16),
        ("I64", torch.int32),
        ("F8_E8M0", torch.float32),
        ("F8_E8M0", torch.bfloat16),
    ],
)
def test_a_right_conversion_keeps_every_code(dtype, target):
    assert torch.equal(_codes(_elements(dtype, SAME[dtype]).to(target)).to(torch.int64), ALL)


def test_scales_turned_into_numbers_instead_of_copied_are_no_codes():
    """`copy_` of E8M0 into uint8 rounds 2^-7 to 0."""
    converted = _elements("F8_E8M0", torch.float8_e8m0fnu).float().clamp(0, 255).to(torch.uint8)
    assert not torch.equal(_codes(converted).to(torch.int64), ALL)


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float8_e4m3fn", "float8_e8m0fnu", "uint8", "int32", "int64"])
def test_zero_and_prefill_are_told_apart(name):
    element = ELEMENT[name]
    for byte, state in ((0, codes.ZERO), (codes.PREFILL, codes.UNTOUCHED)):
        data = torch.full((4 * element,), byte, dtype=torch.uint8)
        assert codes.decode(codes.raw(data, name, element), name).tolist() == [state] * 4


def test_minus_infinity_is_a_state_of_its_own():
    data = torch.full((3,), float("-inf"), dtype=torch.float32)
    assert _codes(data).tolist() == [codes.MINUS_INF] * 3
