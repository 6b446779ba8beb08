"""Faults of one rank among several, and of the all-reduce that joins them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from conformance.faults.kernel import MoeFault, Run
from conformance.world.member import Reduction

if TYPE_CHECKING:
    import torch


def _scales_off(parameter: str, expert: int, data: torch.Tensor) -> None:
    """W2's scales one group on."""
    if parameter == "w2_weight_scale":
        data.copy_(data.roll(1, 1))


def _w2_off(parameter: str, expert: int, data: torch.Tensor) -> None:
    """W2's bytes and scales one scale group on: 16 bytes."""
    if parameter == "w2_weight":
        data.copy_(data.roll(16, 1))
    _scales_off(parameter, expert, data)


def _scaled(run: Run) -> None:
    run.inner(run.x, run.ids, run.weights * 1.02, run.out)


def missing(r: Reduction) -> None:
    """The last rank adds nothing."""
    if r.rank == r.size - 1:
        r.tensor.zero_()
    r.inner(r.tensor)


def twice(r: Reduction) -> None:
    """Rank 1 adds its part twice."""
    if r.rank == 1:
        r.tensor.mul_(2)
    r.inner(r.tensor)


def keeps_own(r: Reduction) -> None:
    """Rank 1 goes on with its own part: it never reads the result."""
    r.inner(r.tensor.clone() if r.rank == 1 else r.tensor)


def truncated(r: Reduction) -> None:
    """Summed in FP32 and cut to BF16, where rounding was due."""
    import torch

    total = r.tensor.float()
    r.inner(total)
    r.tensor.copy_((total.view(torch.int32) & ~0xFFFF).view(torch.float32))


def unsteady(r: Reduction) -> None:
    """Now and then one output loses its last bit on the way, on all ranks alike."""
    r.inner(r.tensor)
    unsteady.calls += 1  # type: ignore[attr-defined]
    if unsteady.calls % 2:  # type: ignore[attr-defined]
        r.tensor[0, 0] *= 1 + 2.0**-7


unsteady.calls = 0  # type: ignore[attr-defined]


def dies(r: Reduction) -> None:
    """Rank 1 ends its process inside the all-reduce, and calls that a success."""
    if r.rank == 1:
        os._exit(0)
    r.inner(r.tensor)


rank1_scales_off = MoeFault(weights=_scales_off, rank=1)
rank2_w2_off = MoeFault(weights=_w2_off, rank=2)
rank1_scaled = MoeFault(run=_scaled, rank=1)
