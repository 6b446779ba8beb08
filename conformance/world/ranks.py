"""How the ranks of a run are run: together in processes of their own, or in turn in this one. Words say which."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from conformance.stacks.protocols import StackOptions
from conformance.world import memory
from conformance.world.member import Member
from conformance.world.processes import Processes

if TYPE_CHECKING:
    from conformance.context import Context

#: More ranks than this run in turn: each is a process with a torch of its own.
_MOST = 8


class Ranks(Protocol):
    """`together`: all at once, so that they can all-reduce. `words`: how they run, for the evidence."""

    together: bool
    words: str

    def each(self, function: str, **arguments: Any) -> list[Any]:
        """`module:name` called as `function(member, **arguments)` for each rank; results in rank order.

        Raises what it raised on the rank to blame, StackCrashed or StackTimeout, in words that name the rank.
        """


class InTurn:
    together = False

    def __init__(self, context: Context, why: str):
        self._context = context
        self.words = f"in turn, in one process ({why})"

    def each(self, function: str, **arguments: Any) -> list[Any]:
        module, _, name = function.partition(":")
        rank_function: Callable[..., Any] = getattr(import_module(module), name)
        size, absent = self._context.target.tp, None
        members = (Member(rank, size, absent, self._context.of_rank(rank)) for rank in range(size))  # type: ignore[arg-type]
        return [rank_function(member, **arguments) for member in members]


class Together:
    together = True

    def __init__(
        self, context: Context, stack: str, options: StackOptions, processes: Processes, weights: bool, words: str
    ):
        self._context, self._stack, self._options, self._processes = context, stack, options, processes
        self._weights = weights
        self.words = words

    def each(self, function: str, **arguments: Any) -> list[Any]:
        from conformance.world.rank import Setup

        c = self._context
        maps = c.maps if self._weights else None
        memory.given_back()
        setup = msgspec.json.encode(Setup(c.target, self._stack, self._options, maps, c.fault))
        return self._processes.each(function, setup, arguments)


class Worlds:
    """The rank processes of one stack, by world size, kept from call to call and ended by `close`."""

    def __init__(self, stack: str, options: StackOptions):
        self._stack, self._options = stack, options
        self._held: dict[tuple[int, str], Processes] = {}

    def of(self, context: Context, device: str, weights: bool) -> Ranks:
        """How this context's ranks can run here. See Context.ranks_on."""
        size = context.target.tp
        backend, devices, lacking = _backend(device)
        if size == 1:
            lacking = "one rank"
        elif not lacking and size > devices:
            lacking = f"{size} ranks, {devices} {'GPUs' if backend == 'nccl' else 'processes at most'}"
        if lacking:
            return InTurn(context, lacking)
        key = size, backend
        if key not in self._held:
            self._held[key] = Processes(size, backend, self._options.call_timeout, self._options.start_timeout)
        each = "one GPU each" if backend == "nccl" else "on CPUs"
        words = f"together, {size} processes, {each}, {backend}"
        return Together(context, self._stack, self._options, self._held[key], weights, words)

    def close(self) -> None:
        for processes in self._held.values():
            processes.close()
        self._held.clear()


def _backend(device: str) -> tuple[str, int, str]:
    """(torch.distributed's backend for a device, the most ranks it can take here, why there is none)."""
    import torch

    backend = "nccl" if device.startswith("cuda") else "gloo"
    if not torch.distributed.is_available():
        return backend, 0, "this torch has no torch.distributed"
    has = torch.distributed.is_nccl_available() if backend == "nccl" else torch.distributed.is_gloo_available()
    if not has:
        return backend, 0, f"this torch has no {backend}"
    return backend, torch.cuda.device_count() if backend == "nccl" else _MOST, ""
