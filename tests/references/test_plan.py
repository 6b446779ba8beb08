"""The plan formulas against the audit's tables, and against the laws that any plan must keep."""

from __future__ import annotations

from functools import partial
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from references import plan

HEADS, AS_THEY_ARE = (partial(plan.attention_heads, virtual=virtual) for virtual in (True, False))
GROUPS, GROUPS_AS_THEY_ARE = (partial(plan.output_groups, virtual=virtual) for virtual in (True, False))
#: (formula, its arguments without tp): per rank and in all, worked out by hand for each tensor-parallel size.
TABLE = [
    # DeepSeek-V4-Flash
    (HEADS, (64,), 3, (24, 72)),
    (GROUPS, (8, 64), 3, (3, 9)),
    (plan.routed_intermediate, (2048,), 3, (704, 2112)),
    (plan.shared_intermediate, (2048,), 3, (768, 2304)),
    (plan.vocabulary, (129280,), 3, (43136, 129408)),
    # ... which TP4 divides as it is
    (AS_THEY_ARE, (64,), 4, (16, 64)),
    (GROUPS_AS_THEY_ARE, (8, 64), 4, (2, 8)),
    (plan.routed_intermediate, (2048,), 4, (512, 2048)),
    (plan.shared_intermediate, (2048,), 4, (512, 2048)),
    (plan.vocabulary, (129280,), 4, (32320, 129280)),
    # TP16 divides the heads and not the groups; TP2 divides 6 heads in 6 groups
    (HEADS, (64,), 16, (8, 128)),
    (AS_THEY_ARE, (6,), 2, (3, 6)),
    (GROUPS_AS_THEY_ARE, (6, 6), 2, (3, 6)),
    # ... and TP3 too, but beside an axis that is padded every rank has eight
    (AS_THEY_ARE, (6,), 3, (2, 6)),
    (HEADS, (6,), 3, (8, 24)),
    (GROUPS, (6, 6), 3, (8, 24)),
    # DeepSeek-V4-Pro: 3072 is 3 x 1024, so only heads, groups and vocabulary are padded at TP3
    (HEADS, (128,), 3, (48, 144)),
    (GROUPS, (16, 128), 3, (6, 18)),
    (plan.routed_intermediate, (3072,), 3, (1024, 3072)),
    (plan.shared_intermediate, (3072,), 3, (1024, 3072)),
    # DeepSeek-V4.1-Flash: 2304 / 4 = 576 = 18 scale groups, but no whole number of FP8 blocks
    (plan.routed_intermediate, (2304,), 4, (576, 2304)),
    (plan.shared_intermediate, (2304,), 4, (640, 2560)),
    (plan.routed_intermediate, (2304,), 3, (768, 2304)),
    (plan.shared_intermediate, (2304,), 3, (768, 2304)),
    # gpt-oss-120b: 2880 = 90 scale groups
    (plan.routed_intermediate, (2880,), 2, (1440, 2880)),
    (plan.routed_intermediate, (2880,), 3, (960, 2880)),
    (plan.routed_intermediate, (2880,), 4, (736, 2944)),
    (plan.routed_intermediate, (2880,), 8, (384, 3072)),
    (plan.vocabulary, (201088,), 3, (67072, 201216)),
    # One rank holds everything
    (AS_THEY_ARE, (64,), 1, (64, 64)),
    (plan.routed_intermediate, (2048,), 1, (2048, 2048)),
]


@pytest.mark.parametrize(("formula", "sizes", "tp", "due"), TABLE)
def test_table(formula, sizes, tp, due):
    assert formula(*sizes, tp) == due


@pytest.mark.parametrize(
    ("per_rank", "rounding", "due"),
    [(704, 1, 704), (704, 32, 704), (704, 128, 768), (704, 256, 768), (576, 128, 640), (96, 128, 128), (768, 128, 768)],
)
def test_kernel_width(per_rank, rounding, due):
    assert plan.kernel_width(per_rank, rounding) == due


@pytest.mark.parametrize(("groups", "heads", "tp"), [(8, 24, 3), (5, 60, 2), (4, 48, 3)])
def test_groups_that_a_ranks_heads_do_not_fill(groups, heads, tp):
    with pytest.raises(ValueError, match="no whole number of groups"):
        plan.output_groups(groups, heads, tp, virtual=True)


_SIZES = st.integers(1, 1 << 18)
_TP = st.integers(1, 64)


@pytest.mark.parametrize(
    ("formula", "alignment"),
    [(plan.routed_intermediate, 32), (plan.shared_intermediate, 128)],
)
@given(size=_SIZES, tp=_TP)
def test_shares_are_the_smallest_aligned_ones(formula, alignment, size, tp):
    share = formula(size, tp)
    assert share.per_rank % alignment == 0
    assert share.padded == share.per_rank * tp >= size
    assert (share.per_rank - alignment) * tp < size


@pytest.mark.parametrize(
    ("sizes", "tp", "due"),
    [
        ((64, 8, 2048), 3, ["heads", "groups", "routed"]),
        ((64, 8, 2048), 4, []),
        ((64, 8, 2048), 16, ["groups"]),
        ((64, 8, 2080), 2, ["routed"]),
        ((64, 8, 2304), 4, []),
        ((6, 6, 2048), 3, ["routed"]),
        ((6, 6, 768), 3, []),
        ((128, 16, 3072), 3, ["heads", "groups"]),
    ],
)
def test_what_needs_virtual_tp(sizes, tp, due):
    assert plan.unshared(*sizes, tp) == due


@given(heads=_SIZES, tp=_TP)
def test_heads_are_padded_by_eights_under_virtual_tp(heads, tp):
    share = HEADS(heads, tp)
    assert share.per_rank % 8 == 0
    assert share.padded == share.per_rank * tp >= heads
    assert (share.per_rank - 8) * tp < heads


@given(rows=_SIZES, tp=_TP)
def test_vocabulary_is_the_smallest_multiple_of_64_and_tp(rows, tp):
    share = plan.vocabulary(rows, tp)
    due = next(n for n in range(ceil(rows / tp) * tp, rows + 64 * tp + 1, tp) if n % 64 == 0)
    assert (share.padded, share.per_rank * tp) == (due, due)


@given(groups=st.integers(1, 32), heads_in_group=st.integers(1, 32), tp=_TP)
def test_groups_keep_their_heads(groups, heads_in_group, tp):
    heads = HEADS(groups * heads_in_group, tp)
    if heads.per_rank % heads_in_group:
        with pytest.raises(ValueError):
            GROUPS(groups, groups * heads_in_group, tp)
        return
    share = GROUPS(groups, groups * heads_in_group, tp)
    assert share.per_rank * heads_in_group == heads.per_rank
    assert share.padded == share.per_rank * tp
