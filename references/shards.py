"""Where one rank's shard begins and ends in the checkpoint, in the units that the tensor is stored in.

The shard is chosen in elements, and only then converted: one row of W13 is one element of the
intermediate axis, one byte of packed MXFP4 holds 2, one E8M0 scale covers 32. Audit, `Routed-expert loader
failure`: W2 bytes 0/352/704 and scales 0/22/44 at TP3 with 704 elements a rank.
"""

from __future__ import annotations

from typing import NamedTuple

ELEMENTS_PER_ROW = 1
ELEMENTS_PER_BYTE = 2
ELEMENTS_PER_SCALE = 32


class Shard(NamedTuple):
    """Stored units: source [start, stop) lands at destination [0, stop - start), then `tail` zeros up to `width`."""

    start: int
    stop: int
    width: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def tail(self) -> int:
        return self.width - self.size


def shard(total: int, per_rank: int, kernel_width: int, rank: int, unit: int) -> Shard:
    """Rank `rank`'s shard of an axis of `total` elements, `per_rank` elements a rank, stored `unit` elements a unit.

    total, per_rank, kernel_width in elements. Ranks past the end of the checkpoint get an empty shard.
    Raises ValueError if a boundary falls inside a stored unit, or if the shard does not fit the kernel.
    """
    first = min(rank * per_rank, total)
    last = min(first + per_rank, total)
    for what, element in (("begins", first), ("ends", last), ("has a kernel width of", kernel_width)):
        if element % unit:
            raise ValueError(
                f"rank {rank}'s shard {what} {element}, inside a unit of {unit} elements: the boundary must fall on one"
            )
    if per_rank > kernel_width:
        raise ValueError(f"{per_rank} elements a rank do not fit a kernel width of {kernel_width}")
    return Shard(first // unit, last // unit, kernel_width // unit)
