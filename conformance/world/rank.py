"""Runs in a rank process: join the group, run rank functions, leave. Asked by `processes`."""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.context import Context
from conformance.errors import StackError, one_line
from conformance.faults.catalogue import FAULTS
from conformance.faults.parts import planted_parts
from conformance.provenance.loaded import LoadedMaps
from conformance.stacks import parts, registry
from conformance.stacks.protocols import Stack, StackOptions
from conformance.target import Target
from conformance.world import memory
from conformance.world.member import Member

if TYPE_CHECKING:
    from collections.abc import Callable

#: Longer than any call may take: the harness's own time limit ends a group that hangs, and knows who is to blame.
_GROUP_TIMEOUT = timedelta(hours=6)


class Setup(msgspec.Struct, frozen=True):
    """What a rank needs to make its own context: a few kilobytes."""

    target: Target
    stack: str
    options: StackOptions
    #: None for ranks that load no experts.
    maps: LoadedMaps | None
    fault: str = ""


class _Rank:
    number = 0
    size = 1
    folder = Path()
    setup = b""
    member: Member | None = None
    stacks: dict[str, Stack] = {}  # noqa: RUF012


def join(rank: int, size: int, backend: str, store: str) -> dict[str, Any]:
    """Enter the process group and run one small all-reduce, so that what cannot connect shows here."""
    import torch
    import torch.distributed as dist

    _Rank.number, _Rank.size, _Rank.folder = rank, size, Path.cwd()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if any(name == "lo" for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if backend == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())  # alone, where this process sees no other
    one = torch.ones(1, device="cuda" if backend == "nccl" else "cpu")
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=_GROUP_TIMEOUT)
    dist.all_reduce(one)
    if float(one) != size:
        raise RuntimeError(f"the first all-reduce of ones over {size} ranks gives {float(one):g}")
    device = torch.cuda.get_device_name() if backend == "nccl" else "CPU"
    return {"pid": os.getpid(), "device": device, "torch": str(torch.__version__)}


def call(function: str, setup: bytes, arguments: dict[str, Any]) -> tuple[str, Any]:
    """("ok", what `module:function` returns for this rank), or an error of the stack: (its name, its words)."""
    try:
        if setup != _Rank.setup or _Rank.member is None:
            _Rank.member = _member(msgspec.json.decode(setup, type=Setup))
            _Rank.setup = setup
        module, _, name = function.partition(":")
        rank_function: Callable[..., Any] = getattr(import_module(module), name)
        return "ok", rank_function(_Rank.member, **arguments)
    except StackError as error:
        return type(error).__name__, one_line(error)
    finally:
        memory.given_back()


def leave() -> None:
    """Free what holds on to the group (captured graphs first), then end it."""
    import gc

    import torch.distributed as dist

    _Rank.member, _Rank.setup = None, b""
    for stack in _Rank.stacks.values():
        stack.close()
    _Rank.stacks.clear()
    gc.collect()
    if "torch.cuda" in sys.modules and sys.modules["torch.cuda"].is_initialized():
        sys.modules["torch.cuda"].synchronize()
    if dist.is_initialized():
        dist.destroy_process_group()


def _member(setup: Setup) -> Member:
    if setup.stack not in _Rank.stacks:
        _Rank.stacks[setup.stack] = registry.open_stack(setup.stack, setup.options)
    stack = _Rank.stacks[setup.stack]
    planted = FAULTS[setup.fault] if setup.fault else None
    offers = parts.of(stack)
    if planted:
        offers = planted_parts(offers, planted, _Rank.number)
    moe = planted.moe if planted else None

    def maps() -> LoadedMaps:
        if setup.maps is None:
            raise LookupError("these ranks were given no maps of a loader")
        return setup.maps

    absent: Any = None  # a rank neither plans nor loads
    whole = Context(setup.target, absent, absent, offers, maps, moe.spoil if moe else None)
    member = Member(_Rank.number, _Rank.size, stack, whole.of_rank(_Rank.number), _Rank.folder)
    member.fault = planted.reduce if planted else None
    return member


CALLS = {"join": join, "call": call, "leave": leave}
