"""Rank functions of the tests: they run in rank processes, and misbehave there."""

from __future__ import annotations

import os
import signal
import time

import torch

from conformance.errors import StackRefused
from conformance.world.member import Member


def _device(member: Member) -> str:
    return member.context.moe.capabilities().device


def total(member: Member, add: int) -> list[float]:
    """Every rank adds its number and `add`."""
    value = torch.tensor([float(member.rank + add)], device=_device(member))
    member.all_reduce(value, "the sum")
    return [member.rank, float(value)]


def misbehave(member: Member, rank: int, how: str) -> None:
    """One rank does not come out of (or to) the all-reduce in which the others wait."""
    member.stage("its own work")
    if member.rank == rank:
        match how:
            case "hang":
                time.sleep(600)
            case "exit":
                os._exit(0)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "refuse":
                raise StackRefused("704 is no multiple of 128")
            case "raise":
                raise ValueError("two\nlines")
    member.all_reduce(torch.ones(1, device=_device(member)), "the all-reduce")
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def everyone_hangs(member: Member) -> None:
    member.stage("a long sleep")
    time.sleep(600)


def whoami(member: Member) -> list[int]:
    return [member.rank, member.size, *member.context.ranks]
