"""Virtual tensor parallelism: how far each axis is padded so that TP ranks get equal, aligned shares.

Source of every formula: the TP3 audit of vLLM 45c1582e9, section `TP3 shape plan`. Sizes are in elements
of the axis (heads, groups, channels, vocabulary rows). `Share` gives one rank's size and the global size.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

HEAD_ALIGNMENT = 8
ROUTED_ALIGNMENT = 32  # one MXFP4 scale group
SHARED_ALIGNMENT = 128  # one FP8 block
VOCAB_ALIGNMENT = 64


class Share(NamedTuple):
    per_rank: int
    padded: int


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def align_up(size: int, alignment: int) -> int:
    return ceil_div(size, alignment) * alignment


def _equal_shares(size: int, tp: int, alignment: int) -> Share:
    per_rank = align_up(ceil_div(size, tp), alignment)
    return Share(per_rank, per_rank * tp)


def unshared(heads: int, groups: int, intermediate: int, tp: int) -> list[str]:
    """Axes for which TP ranks need virtual TP: tp does not divide them, or cuts a scale group. One plan pads all axes.

    2080 channels at TP2, 1040 a rank, cut scale group 32 in two. Shared experts and vocabulary any vLLM pads by itself.
    """
    found = [name for name, size in (("heads", heads), ("groups", groups)) if size % tp]
    return found + ["routed"] * (routed_intermediate(intermediate, tp).padded != intermediate)


def attention_heads(heads: int, tp: int, virtual: bool) -> Share:
    """Query heads: with virtual TP align_up(ceil(heads / tp), 8) a rank. 64 at TP3: 24, 72.

    Without it nothing is padded: 6 heads at TP2 are 3 a rank, and 6 at TP3 are 2 or, beside an axis that is padded, 8.
    """
    return _equal_shares(heads, tp, HEAD_ALIGNMENT) if virtual else Share(heads // tp, heads)


def output_groups(groups: int, heads: int, tp: int, virtual: bool) -> Share:
    """Output groups keep their heads-per-group: padded heads / (heads / groups). 8 of 64 heads at TP3: 3, 9.

    Raises ValueError where a rank's heads are no whole number of groups.
    """
    heads_per_group = heads // groups
    share = attention_heads(heads, tp, virtual)
    if share.per_rank % heads_per_group:
        raise ValueError(f"{share.per_rank} heads a rank are no whole number of groups of {heads_per_group} heads")
    return Share(share.per_rank // heads_per_group, share.padded // heads_per_group)


def routed_intermediate(intermediate: int, tp: int) -> Share:
    """Routed experts: align_up(ceil(I / tp), 32) a rank. 2048 at TP3: 704, 2112."""
    return _equal_shares(intermediate, tp, ROUTED_ALIGNMENT)


def shared_intermediate(intermediate: int, tp: int) -> Share:
    """Shared experts (FP8 in 128x128 blocks): align_up(ceil(I / tp), 128). 2048 at TP3: 768, 2304."""
    return _equal_shares(intermediate, tp, SHARED_ALIGNMENT)


def vocabulary(rows: int, tp: int) -> Share:
    """Vocabulary: the global size is aligned to lcm(64, tp). 129280 at TP3: 43136, 129408."""
    padded = align_up(rows, lcm(VOCAB_ALIGNMENT, tp))
    return Share(padded // tp, padded)


def kernel_width(per_rank: int, rounding: int) -> int:
    """Width that the MoE kernel allocates for one rank: 704 rounded to 128 is 768."""
    return align_up(per_rank, rounding)
