"""Sums in BF16: every order of adding pairs is listed, and nothing else."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from references import allreduce


def _parts(count: int, seed: int = 0) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(4000, generator=rng).bfloat16() for _ in range(count)]


@pytest.mark.parametrize(("count", "orders"), [(1, 1), (2, 1), (3, 3), (4, 15)])
def test_orders(count, orders):
    assert len(allreduce.possible(_parts(count))) == orders + 1


@pytest.mark.parametrize("count", [2, 3, 4])
def test_any_ring_is_among_them_and_within_the_room(count):
    parts = _parts(count, count)
    listed, exact, room = allreduce.possible(parts), allreduce.exact(parts), allreduce.room(parts)
    for order in permutations(parts):
        total = order[0]
        for part in order[1:]:
            total = total + part
        assert any(torch.equal(total, one) for one in listed)
        assert bool(((total.double() - exact).abs() <= room).all())


def test_orders_differ_and_one_ulp_off_is_none_of_them():
    parts = _parts(3)
    listed = allreduce.possible(parts)
    assert any(not torch.equal(listed[0], one) for one in listed)
    off = listed[0] * (1 + 2.0**-6)
    assert float(torch.stack([off == one for one in listed]).any(0).double().mean()) < 0.02


def test_pairs_of_a_tree_of_four():
    a, b, c, d = _parts(4)
    assert any(torch.equal((a + b) + (c + d), one) for one in allreduce.possible([a, b, c, d]))


def test_too_many():
    with pytest.raises(ValueError, match="5 parts have too many orders"):
        allreduce.possible(_parts(5))
