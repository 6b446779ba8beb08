"""Faults of kernels that are compiled or configured at their first call."""

from __future__ import annotations

import threading
from contextlib import suppress
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


def _by_address(r: Run) -> None:
    """Tokens are converted once for each address: what lies there later is not seen."""
    r.inner(r.kept.setdefault(f"x at {r.x.data_ptr()}", r.x.clone()), r.ids, r.weights, r.out)


def _first_clobbers(r: Run) -> None:
    """Compiling runs once over memory that it takes for free: 64 bytes behind the output."""
    r.inner(r.x, r.ids, r.weights, r.out)
    if r.number == 0:
        _behind(r.out, 64).zero_()


class _Entry:
    """Of a cache that all layers share, by batch size: `made` is what was compiled, 1 where it is right."""

    def __init__(self, x: torch.Tensor):
        self.made: list[float] = []
        self.scratch = x
        self._two = threading.Barrier(2)

    def compile(self) -> None:
        """Takes until a second thread is here too; alone a second, once."""
        with suppress(threading.BrokenBarrierError):
            self._two.wait(1.0)


def _entry(r: Run) -> tuple[_Entry, bool]:
    """(The call's entry, whether this call put it there.)"""
    new = _Entry(r.x)
    found = r.shared.setdefault(len(r.x), new)
    return found, found is new


def _published_empty(r: Run) -> None:
    """An entry is in the cache before it is filled: who comes meanwhile runs with nothing."""
    entry, first = _entry(r)
    found = sum(entry.made)
    entry.compile()
    if first:
        entry.made.append(1.0)
    r.inner(r.x, r.ids, r.weights * (1.0 if first else found), r.out)


def _built_twice(r: Run) -> None:
    """Nobody holds a lock between looking and building: two add to one entry, which stays so."""
    entry, _ = _entry(r)
    if not entry.made:
        entry.compile()
        entry.made.append(1.0)
    r.inner(r.x, r.ids, r.weights * sum(entry.made), r.out)


def _scratch_shared(r: Run) -> None:
    """Nobody holds the lock of a workspace that all layers share: the other thread's tokens lie in it."""
    entry, _ = _entry(r)
    entry.scratch = r.x
    entry.compile()
    r.inner(entry.scratch, r.ids, r.weights, r.out)


published_empty = MoeFault(run=_published_empty)
built_twice = MoeFault(run=_built_twice)
scratch_shared = MoeFault(run=_scratch_shared)
first_size = MoeFault(run=_first_size)
larger_left = MoeFault(run=_larger_left)
first_address = MoeFault(run=_first_address)
by_address = MoeFault(run=_by_address)
first_clobbers = MoeFault(run=_first_clobbers)
