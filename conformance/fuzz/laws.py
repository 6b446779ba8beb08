"""Laws that every right way of cutting an axis obeys, whatever formula it uses; `references/` is held against them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from references import plan, shards
from references.plan import Share


class Cut(NamedTuple):
    """An axis and how it is cut and stored: elements, except `tp`. `packing` elements share a stored byte, `group` a
    scale; a rank's share is a multiple of `alignment`, a kernel's width one of `rounding`."""

    tp: int
    total: int
    alignment: int
    packing: int
    group: int
    rounding: int


#: The references' own formulas, by alignment; other alignments are put together from their parts.
_SHARES: dict[int, Callable[[int, int], Share]] = {
    plan.ROUTED_ALIGNMENT: plan.routed_intermediate,
    plan.SHARED_ALIGNMENT: plan.shared_intermediate,
}


@st.composite
def _cuts(draw: st.DrawFn) -> Cut:
    tp = draw(st.integers(1, 16))
    group = draw(st.sampled_from([32, 8, 16, 64, 128]))
    packing = draw(st.sampled_from([size for size in (2, 1, 4, 8) if group % size == 0]))
    total = group * draw(st.integers(1, 200))
    alignment = group * draw(st.integers(1, 4))
    return Cut(tp, total, alignment, packing, group, group * draw(st.sampled_from([1, 2, 3, 4, 8])))


def cuts() -> SearchStrategy[Cut]:
    return _cuts()


def broken(cut: Cut) -> str:
    """The first law that the references break at this cut, in words; empty if they keep all of them."""
    for name, law in LAWS.items():
        try:
            problem = law(cut)
        except ValueError as error:
            problem = f"an error where a right cut exists: {error}"
        if problem:
            return f"{name}: {problem}"
    return ""


def _share(cut: Cut) -> Share:
    formula = _SHARES.get(cut.alignment)
    if formula:
        return formula(cut.total, cut.tp)
    per_rank = plan.align_up(plan.ceil_div(cut.total, cut.tp), cut.alignment)
    return Share(per_rank, per_rank * cut.tp)


def _shards(cut: Cut, unit: int) -> list[shards.Shard]:
    per_rank = _share(cut).per_rank
    width = plan.kernel_width(per_rank, cut.rounding)
    return [shards.shard(cut.total, per_rank, width, rank, unit) for rank in range(cut.tp)]


def _aligned(cut: Cut) -> str:
    share = _share(cut)
    if share.per_rank % cut.alignment or share.padded != share.per_rank * cut.tp:
        return f"{share} is not tp times a multiple of {cut.alignment}"
    return ""


def _smallest(cut: Cut) -> str:
    """The share holds the axis, and one step less would not."""
    per_rank = _share(cut).per_rank
    if not (per_rank - cut.alignment) * cut.tp < cut.total <= per_rank * cut.tp:
        return f"{per_rank} a rank is not the smallest share that holds {cut.total}"
    return ""


def _partition(cut: Cut) -> str:
    """Each stored unit, packed or scale, belongs to exactly one rank, in order."""
    for unit in (cut.packing, cut.group):
        reached = 0
        for rank, one in enumerate(_shards(cut, unit)):
            if one.start != reached or one.stop < one.start:
                return f"rank {rank} has [{one.start}, {one.stop}) where {reached} is next, units of {unit}"
            reached = one.stop
        if reached * unit != cut.total:
            return f"the ranks hold {reached} units of {unit}, the axis {cut.total} elements"
    return ""


def _together(cut: Cut) -> str:
    """Weights and scales begin and end at the same element."""
    for rank, (packed, scales) in enumerate(zip(_shards(cut, cut.packing), _shards(cut, cut.group), strict=True)):
        weights = packed.start * cut.packing, packed.stop * cut.packing
        groups = scales.start * cut.group, scales.stop * cut.group
        if weights != groups:
            return f"rank {rank}: weights {weights}, scales {groups} elements"
    return ""


def _tails(cut: Cut) -> str:
    """A shard and its tail fill the kernel's width, which is the smallest multiple that holds a share."""
    per_rank = _share(cut).per_rank
    width = plan.kernel_width(per_rank, cut.rounding)
    if width % cut.rounding or not per_rank <= width < per_rank + cut.rounding:
        return f"{width} is not {per_rank} rounded up to {cut.rounding}"
    for unit in (cut.packing, cut.group):
        for rank, one in enumerate(_shards(cut, unit)):
            if one.tail < 0 or (one.size + one.tail) * unit != width:
                return f"rank {rank}: {one.size} and a tail of {one.tail} are not {width} elements, units of {unit}"
    return ""


def _refused(cut: Cut) -> str:
    """A boundary inside a scale group is an error and no shard."""
    per_rank = _share(cut).per_rank + cut.group // 2
    if cut.tp == 1 or per_rank >= cut.total:
        return ""
    try:
        got = shards.shard(cut.total, per_rank, plan.align_up(per_rank, cut.group), 1, cut.group)
    except ValueError:
        return ""
    return f"{per_rank} a rank cuts a group of {cut.group}, and yet rank 1 is {got}"


LAWS: dict[str, Callable[[Cut], str]] = {
    "alignment": _aligned,
    "smallest share": _smallest,
    "partition": _partition,
    "weights with their scales": _together,
    "tails": _tails,
    "no boundary inside a group": _refused,
}
