"""Gate and up rows interleaved by `granularity` rows of the output axis:

    out[2 j g + r] = gate[j g + r]        out[(2 j + 1) g + r] = up[j g + r]        0 <= r < g

Granularity counts output rows, whatever two elements share a byte of: packing is along the other axis.
"""

from __future__ import annotations

import torch


def order(half: int, granularity: int) -> torch.Tensor:
    """For each row of the interleaved matrix (2 I), the row of [gate; up] that belongs there."""
    if half % granularity:
        raise ValueError(f"{half} rows of gate are no multiple of {granularity}")
    row = torch.arange(2 * half)
    pair, within = row // (2 * granularity), row % (2 * granularity)
    return pair * granularity + within % granularity + half * (within // granularity)
