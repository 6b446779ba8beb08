"""Positions as digits: every one comes back, and the prefill never looks like one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.provenance import positions

#: 255 values a byte; the last position of each number of digits is the prefill's own.
PASSES = [(1, 1), (253, 1), (254, 1), (255, 2), (256, 2), (65023, 2), (65024, 2), (65025, 3), (65026, 3)]
PASSES += [(255**3 - 1, 3), (255**3, 4), (255**4 - 1, 4), (255**4, 5)]


@pytest.mark.parametrize(("count", "due"), PASSES)
def test_passes(count, due):
    assert positions.passes(count) == due


def _digits(values: list[int], count: int) -> list[torch.Tensor]:
    places = torch.tensor(values, dtype=torch.int64)
    return [positions.digit(places, index) for index in range(positions.passes(count))]


@pytest.mark.parametrize("count", [count for count, _ in PASSES])
def test_edges_come_back(count):
    edges = {0, 1, 253, 254, 255, 256, 65023, 65024, 65025, count - 2, count - 1}
    values = sorted(value for value in edges if 0 <= value < count)
    digits = _digits(values, count)
    assert all(1 <= int(byte) <= 255 for digit in digits for byte in digit)
    assert positions.decode(digits, count).tolist() == values
    assert not any(all(int(digit[i]) == positions.PREFILL for digit in digits) for i in range(len(values)))


def test_digits_by_hand():
    """1000 = 3 * 255 + 235; 70000 = 1 * 65025 + 19 * 255 + 130; each digit plus one."""
    assert [d.tolist() for d in _digits([1000, 70000], 70001)] == [[236, 131], [4, 20], [1, 2]]


@given(count=st.integers(1, 255**4), data=st.data())
def test_round_trip(count, data):
    values = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20))
    assert positions.decode(_digits(values, count), count).tolist() == values


@given(count=st.integers(1, 255**3), data=st.data())
def test_any_bytes_decode_to_what_they_say(count, data):
    """Against the definition, byte by byte: all zero, all prefill, a known position, or unknown."""
    passes = positions.passes(count)
    byte = st.sampled_from([0, 1, 2, 254, 255]) | st.integers(0, 255)
    read = data.draw(st.lists(st.tuples(*[byte] * passes), min_size=1, max_size=20))
    due = []
    for places in read:
        value = sum((b - 1) * 255**i for i, b in enumerate(places))
        if not any(places):
            due.append(positions.ZERO)
        elif all(b == 255 for b in places):
            due.append(positions.UNTOUCHED)
        elif 0 in places or value >= count:
            due.append(positions.UNKNOWN)
        else:
            due.append(value)
    digits = [torch.tensor([places[i] for places in read], dtype=torch.uint8) for i in range(passes)]
    assert positions.decode(digits, count).tolist() == due
