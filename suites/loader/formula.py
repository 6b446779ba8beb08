"""Guess, in words, the formula that a wrong loader used.

`stride 384 = padded 768 / 2; logical 704 / 2 = 352 was due`
"""

from __future__ import annotations

from itertools import pairwise


def stride(starts: list[int], total: int, tp: int, per_rank: int, kernel_width: int, unit: int) -> str:
    """Words for the step between the ranks' first stored units.

    starts: measured source start of each rank that loaded something. total: stored units in the checkpoint.
    per_rank and kernel_width: elements. unit: elements in a stored unit. Empty if the step is right or unknown.
    """
    steps = {b - a for a, b in pairwise(starts)}
    if len(steps) != 1:
        return ""
    step = steps.pop()
    over = f" / {unit}" if unit > 1 else ""
    due = f"logical {per_rank}{over} = {per_rank // unit} was due"
    if step * unit == per_rank:
        return ""
    known = {
        kernel_width // unit: f"padded {kernel_width}{over}",
        total // tp: f"floor({total} / {tp})",
        per_rank: f"{per_rank} elements, taken for stored units",
        0: "every rank reads from the start",
        -(per_rank // unit): "the ranks in reverse order",
    }
    how = known.get(step)
    return f"stride {step} = {how}; {due}" if how else f"stride {step}; {due}"
