"""What runs on each rank, in its own process where there is one: `function(member, **arguments)`, simple types back."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from conformance import catalogue
from conformance.world.member import Member
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.bits import same


def checks(member: Member, claims: list[str]) -> list[dict[str, Any]]:
    """Evidence of those claims' own checks, for this rank alone."""
    found = []
    for name in claims:
        member.stage(name)
        evidence = catalogue.get(name).function()(member.stack, member.context)
        found.append(msgspec.to_builtins(evidence))
    return found


def sums(member: Member) -> dict[str, Any]:
    """This rank's part of each random batch, and what an all-reduce of it leaves here, twice.

    `part`, `sum`: the bytes of (tokens, H); `sum` is empty where ranks run in turn. `unsteady`: batch sizes
    whose second all-reduce left other bits than the first.
    """
    bench = Bench(member.context)
    tokens = random_batch.batch(bench)
    member.stage("its experts")
    part = random_batch.run(bench, member.rank, tokens)
    if not member.together:
        return {"part": to_bytes(part), "sum": b"", "unsteady": []}
    totals, unsteady = [], []
    for m, span in tokens.parts():
        first, again = part[span].clone(), part[span].clone()
        if not m:
            continue
        member.all_reduce(first, f"the all-reduce of M={m}")
        member.all_reduce(again, f"the second all-reduce of M={m}")
        totals.append(first)
        if not bool(same(first, again).all()):
            unsteady.append(m)
    return {"part": to_bytes(part), "sum": to_bytes(torch.cat(totals)), "unsteady": unsteady}


def to_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def from_bytes(data: bytes, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(tokens, H) in the shape and on the device of `like`."""
    return torch.frombuffer(bytearray(data), dtype=dtype).view(like.shape).to(like.device)
