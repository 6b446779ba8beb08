"""Faults of kernels that are compiled or configured at their first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.faults.graph import _behind
from conformance.faults.kernel import MoeFault, Run

if TYPE_CHECKING:
    import torch


def _first_size(r: Run) -> None:
    """The batch size of the first call is compiled in: rows behind it are read from its own."""
    first = len(r.kept.setdefault("x", r.x))
    r.inner(r.x[_wrapped(r, first)], r.ids, r.weights, r.out)


def _wrapped(r: Run, size: int) -> torch.Tensor:
    import torch

    return torch.arange(len(r.x), device=r.x.device) % max(1, size)


def _larger_left(r: Run) -> None:
    """A small batch after a larger one runs with the larger one's tile, and rounds its weights."""
    most = r.kept.get("most")
    r.kept["most"] = r.x if most is None or len(r.x) > len(most) else most
    small = most is not None and len(most) > len(r.x)
    r.inner(r.x, r.ids, r.weights.bfloat16().float() if small else r.weights, r.out)


def _first_address(r: Run) -> None:
    """A descriptor is bound to the tokens of the first call of a batch size."""
    r.inner(r.kept.setdefault(f"x of {len(r.x)}", r.x), r.ids, r.weights, r.out)


def _first_clobbers(r: Run) -> None:
    """Compiling runs once over memory that it takes for free: 64 bytes behind the output."""
    r.inner(r.x, r.ids, r.weights, r.out)
    if r.number == 0:
        _behind(r.out, 64).zero_()


first_size = MoeFault(run=_first_size)
larger_left = MoeFault(run=_larger_left)
first_address = MoeFault(run=_first_address)
first_clobbers = MoeFault(run=_first_clobbers)
