"""What an all-reduce in BF16 may leave: sums of two, rounded each time, in an order that nobody promises.

Ring, tree and halving all-reduces add two numbers at a time and store BF16 in between, each in its own order; some
keep FP32 and round once. For a few ranks every possible result can be listed, so that the comparison is exact.
"""

from __future__ import annotations

import torch

from references.bound import ulp

#: Ranks for which all orders are listed: 1, 3 and 15 of them for 2, 3 and 4.
MOST = 4


def possible(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """The bfloat16 sums of up to MOST bfloat16 tensors: one for every order of adding pairs, and the exact sum
    rounded once. Raises ValueError for more."""
    if len(parts) > MOST:
        raise ValueError(f"{len(parts)} parts have too many orders to list; at most {MOST} were due")
    sums: dict[int, list[torch.Tensor]] = {1 << n: [part] for n, part in enumerate(parts)}
    for group in range(1, 1 << len(parts)):
        if group not in sums:
            lowest = group & -group
            splits = [s for s in range(1, group) if s & group == s and s & lowest]
            sums[group] = [(a.float() + b.float()).bfloat16() for s in splits for a in sums[s] for b in sums[group ^ s]]
    return [*sums[(1 << len(parts)) - 1], exact(parts).float().bfloat16()]


def exact(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum in FP64."""
    return torch.stack([part.double() for part in parts]).sum(0)


def room(parts: list[torch.Tensor]) -> torch.Tensor:
    """How far such a sum may be from the exact one, for any number of parts: half an ulp of the largest partial sum
    that there can be, at every addition."""
    largest = torch.stack([part.double().abs() for part in parts]).sum(0)
    return ulp(largest * (1 + len(parts) * 2.0**-8)) / 2 * (len(parts) - 1)
