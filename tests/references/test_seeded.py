"""Seeded bytes: the hash itself, any block of them, and that no two places look alike."""

from __future__ import annotations

import pytest
import torch

from references import seeded


def _splitmix64(z: int) -> int:
    """The published generator's output function, in Python's integers."""
    mask = (1 << 64) - 1
    z = (z + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@pytest.mark.parametrize("value", [0, 1, -1, 2**62, -(2**63), 123456789])
def test_the_hash(value):
    found = seeded.hashed(torch.tensor([value])).item()
    assert found % (1 << 64) == _splitmix64(value % (1 << 64))


def test_the_published_first_value():
    """splitmix64 seeded with 0 yields 0xE220A8397B1DCDAF first."""
    assert seeded.hashed(torch.tensor([0])).item() % (1 << 64) == 0xE220A8397B1DCDAF


def test_a_byte_by_hand():
    mask, seed, tensor, expert, row, col = (1 << 64) - 1, 9, 3, 5, 7, 29
    key = seed
    for part in (tensor, expert, row, col // 8):
        key = _splitmix64((key + part) & mask)
    found = seeded.block(seed, tensor, expert, (row, row + 1), (col, col + 1))
    assert found.item() == key.to_bytes(8, "little")[col % 8]


@pytest.mark.parametrize(("rows", "cols"), [((0, 5), (0, 8)), ((2, 4), (3, 21)), ((1, 2), (7, 9)), ((0, 1), (16, 17))])
def test_any_block_is_a_part_of_the_whole(rows, cols):
    whole = seeded.block(1, 2, 3, (0, 16), (0, 64))
    assert torch.equal(seeded.block(1, 2, 3, rows, cols), whole[rows[0] : rows[1], cols[0] : cols[1]])


def test_places_differ():
    whole = seeded.block(1, 2, 3, (0, 64), (0, 64))
    for other in (
        seeded.block(2, 2, 3, (0, 64), (0, 64)),
        seeded.block(1, 3, 3, (0, 64), (0, 64)),
        seeded.block(1, 2, 4, (0, 64), (0, 64)),
        seeded.block(1, 2, 3, (1, 65), (0, 64)),
        seeded.block(1, 2, 3, (0, 64), (1, 65)),
        seeded.block(1, 2, 3, (0, 64), (8, 72)),
    ):
        assert (whole == other).float().mean() < 0.02, "chance alone is 1 / 256"


def test_bytes_are_spread_evenly():
    counts = torch.bincount(seeded.block(0, 0, 0, (0, 512), (0, 512)).flatten().int(), minlength=256)
    assert counts.min() > 850 and counts.max() < 1200, "1024 each, give or take 32"


def test_several_experts_at_once():
    found = seeded.blocks(5, 1, (2, 5), (3, 9), (4, 29))
    assert torch.equal(found, torch.stack([seeded.block(5, 1, expert, (3, 9), (4, 29)) for expert in (2, 3, 4)]))
