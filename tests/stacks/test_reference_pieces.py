"""Rows made when they are read are the bytes that a tensor would hold which was written to in place."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.stacks.reference_pieces import Memory, Pieces


class _InPlace:
    """A tensor that is written to."""

    def __init__(self, dtype, shape, rest):
        self.data, self.rest = torch.empty(shape, dtype=dtype).fill_(rest), rest

    def fill(self, byte):
        self.data.view(-1).view(torch.uint8).fill_(byte)

    def write(self, top, bottom, part):
        self.data[top:bottom].fill_(self.rest)
        if part is not None:
            self.data[top : top + len(part)][(slice(None), *(slice(n) for n in part.shape[1:]))] = part


@pytest.mark.parametrize(
    ("dtype", "shape", "rest"),
    [
        (torch.bfloat16, (9, 6), 0),
        (torch.float32, (9,), -math.inf),
        (torch.float8_e8m0fnu, (9, 4), 0),
        (torch.int64, (9, 1), 0),
        (torch.uint8, (9, 2, 3), 0),
    ],
)
def test_any_writes_read_in_any_bytes(dtype, shape, rest):
    rng = torch.Generator().manual_seed(5)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=rng))

    for _ in range(60):
        kept, right, memory = Pieces(dtype, shape, rest), _InPlace(dtype, shape, rest), Memory()
        for _ in range(number(0, 7)):
            top = number(0, 9)
            bottom = number(top + 1, 10)
            sizes = [number(1, bottom - top + 1), *(number(1, n + 1) for n in shape[1:])]
            part = torch.randint(1, 120, sizes, generator=rng).to(torch.uint8).to(dtype)
            what = number(0, 6)
            for one in (kept, right):
                one.fill(0xFF) if what == 0 else one.write(top, bottom, None if what == 1 else part)
        due = right.data.view(-1).view(torch.uint8)
        for _ in range(5):
            first = number(0, len(due))
            last = number(first + 1, len(due) + 1)
            assert torch.equal(kept.read(first, last, memory), due[first:last])


def test_what_is_overwritten_is_let_go():
    kept = Pieces(torch.uint8, (8, 2), 0)
    for _ in range(100):
        kept.write(0, 4, torch.ones(4, 2, dtype=torch.uint8))
        kept.write(4, 8, None)
    assert len(kept._written) == 2
