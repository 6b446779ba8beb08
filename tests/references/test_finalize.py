"""Sums of slots: FP32 in order, and every order of BF16 additions within the bound."""

from __future__ import annotations

from itertools import permutations

import torch

from references import finalize


def _bf16(x: torch.Tensor) -> torch.Tensor:
    return x.float().to(torch.bfloat16).double()


def _slots(k: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return _bf16(torch.randn(8, k, 64, generator=rng, dtype=torch.float64)), torch.rand(8, k, generator=rng)


def test_unfused_is_one_rounding_away_from_the_sum():
    slots, weights = _slots(6)
    exact = (slots * weights[:, :, None].double()).sum(1)
    assert ((finalize.unfused(slots, weights) - exact).abs() <= exact.abs() * 2.0**-8 + 2.0**-20).all()


def test_unfused_sums_in_slot_order():
    """2^24 + 1 - 2^24 in FP32: the one is lost, or kept, by order."""
    slots = torch.tensor([2.0**24, 1.0, -(2.0**24)], dtype=torch.float64).view(1, 3, 1)
    weights = torch.ones(1, 3)
    assert finalize.unfused(slots, weights).item() == 0
    assert finalize.unfused(slots[:, [0, 2, 1]], weights).item() == 1


def test_every_order_of_bf16_additions_is_within_the_bound():
    slots, weights = _slots(4)
    value, radius = finalize.fused(slots, weights)
    terms = _bf16(slots * weights[:, :, None].double())
    results = []
    for order in permutations(range(4)):
        total = torch.zeros_like(value)
        for slot in order:
            total = _bf16(total + terms[:, slot])
        results.append(total)
    off = (torch.stack(results) - value).abs()
    assert (off <= radius).all()
    assert off.max() > 0.2 * radius.max(), "the bound is no excuse"
    assert (torch.stack(results) != results[0]).any(), "orders differ"


def test_one_slot_is_a_value():
    slots, weights = _slots(1)
    value, radius = finalize.fused(slots, weights)
    assert not radius.any()
    assert torch.equal(value, _bf16(slots[:, 0] * weights.double()))
