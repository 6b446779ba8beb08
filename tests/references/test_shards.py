"""Shard starts and tails against the audit's table, and the laws of a partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from references.shards import Shard, shard

#: DeepSeek-V4-Flash at TP3, kernel width 768: total, per rank, kernel width, elements in a unit -> starts, tails
TABLE = {
    "W13 rows": ((2048, 704, 768, 1), (0, 704, 1408), (64, 64, 128)),
    "W2 bytes": ((2048, 704, 768, 2), (0, 352, 704), (32, 32, 64)),
    "W2 scales": ((2048, 704, 768, 32), (0, 22, 44), (2, 2, 4)),
    "wq_b rows": ((64 * 512, 24 * 512, 24 * 512, 1), (0, 12288, 24576), (0, 0, 4096)),
    "wq_b scales": ((64 * 512, 24 * 512, 24 * 512, 128), (0, 96, 192), (0, 0, 32)),
    "wo_a rows": ((8 * 1024, 3 * 1024, 3 * 1024, 1), (0, 3072, 6144), (0, 0, 1024)),
    "wo_a scales": ((8 * 1024, 3 * 1024, 3 * 1024, 128), (0, 24, 48), (0, 0, 8)),
    "shared rows": ((2048, 768, 768, 1), (0, 768, 1536), (0, 0, 256)),
    "shared scales": ((2048, 768, 768, 128), (0, 6, 12), (0, 0, 2)),
    "vocabulary rows": ((129280, 43136, 43136, 1), (0, 43136, 86272), (0, 0, 128)),
    "attention sinks": ((64, 24, 32, 1), (0, 24, 48), (8, 8, 16)),
    "W2 bytes, no kernel rounding": ((2048, 704, 704, 2), (0, 352, 704), (0, 0, 32)),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(name):
    (total, per_rank, width, unit), starts, tails = TABLE[name]
    shards = [shard(total, per_rank, width, rank, unit) for rank in range(3)]
    assert tuple(s.start for s in shards) == starts
    assert tuple(s.tail for s in shards) == tails
    assert shards[-1].stop == total // unit
    assert {s.width for s in shards} == {width // unit}


def test_v41_flash_at_tp4():
    """576 elements a rank: 288 bytes and 18 scale groups, in a kernel of 640."""
    for rank in range(4):
        assert shard(2304, 576, 640, rank, 2) == Shard(288 * rank, 288 * (rank + 1), 320)
        assert shard(2304, 576, 640, rank, 32) == Shard(18 * rank, 18 * (rank + 1), 20)


def test_ranks_past_the_end_are_empty():
    """256 channels over 7 ranks of 64: rank 4 begins where the checkpoint ends."""
    assert [shard(256, 64, 128, rank, 32) for rank in (3, 4, 6)] == [Shard(6, 8, 4), Shard(8, 8, 4), Shard(8, 8, 4)]
    assert shard(256, 64, 128, 6, 32).tail == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2048, 683, 768, 1, 2), "begins 683, inside a unit of 2"),
        ((2048, 688, 768, 0, 32), "ends 688, inside a unit of 32"),
        ((2040, 704, 768, 2, 32), "ends 2040, inside a unit of 32"),
        ((2048, 704, 720, 0, 32), "kernel width of 720, inside a unit of 32"),
        ((2048, 704, 672, 0, 2), "704 elements a rank do not fit a kernel width of 672"),
    ],
)
def test_what_has_no_right_shard(arguments, words):
    with pytest.raises(ValueError, match=words):
        shard(*arguments)


@given(
    unit=st.sampled_from([1, 2, 32, 128]),
    total=st.integers(1, 400),
    per_rank=st.integers(1, 200),
    spare=st.integers(0, 100),
    extra_ranks=st.integers(0, 3),
)
def test_shards_partition_the_axis(unit, total, per_rank, spare, extra_ranks):
    """`total`, `per_rank` and `spare` in units here."""
    tp = -(-total // per_rank) + extra_ranks
    shards = [shard(total * unit, per_rank * unit, (per_rank + spare) * unit, rank, unit) for rank in range(tp)]
    owned = [position for s in shards for position in range(s.start, s.stop)]
    assert owned == list(range(total))
    for rank, s in enumerate(shards):
        assert s.start == min(rank * per_rank, total)
        assert s.tail == s.width - s.size == per_rank + spare - s.size >= spare
        assert s.size == per_rank or s.stop == total
    assert all(s.size == 0 for s in shards[tp - extra_ranks :])


@given(total=st.integers(1, 500), per_rank=st.integers(1, 500), unit=st.sampled_from([2, 32]), rank=st.integers(0, 4))
def test_a_boundary_inside_a_unit_is_never_rounded(total, per_rank, unit, rank):
    edges = min(rank * per_rank, total), min((rank + 1) * per_rank, total)
    width = -(-per_rank // unit) * unit
    if any(edge % unit for edge in edges):
        with pytest.raises(ValueError, match="inside a unit"):
            shard(total, per_rank, width, rank, unit)
    else:
        s = shard(total, per_rank, width, rank, unit)
        assert (s.start * unit, s.stop * unit) == edges
