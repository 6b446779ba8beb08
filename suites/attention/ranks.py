"""What runs on each rank, in its own process: attention, output projection, all-reduce. Simple types back."""

from __future__ import annotations

from typing import Any

import torch

from conformance.world.member import Member
from references import attention_output
from suites.attention import output_weights as weights
from suites.attention import random_scenes
from suites.attention.bench import Bench
from suites.moe.bits import same
from suites.moe.ranks import to_bytes

RATIO = 4


def sums(member: Member, phase: str) -> dict[str, Any]:
    """This rank's part of a random batch, and what an all-reduce of it leaves here, twice.

    `part`, `sum`: the bytes of (T, hidden) bfloat16; `unsteady`: whether the second all-reduce left other bits.
    """
    bench = Bench(member.context, "attend")
    one = random_scenes.made(bench, RATIO, phase)  # type: ignore[arg-type]
    member.stage("its heads")
    out = bench.attend(bench.call(one, member.rank, phase))  # type: ignore[arg-type]
    cut = weights.of_rank(bench, member.rank, weights.random)
    if "output" in bench.can.parts:
        with weights.opened(bench, cut) as run:
            part = run(out, one.positions)
    else:
        part = _projected(bench, out, one.positions, cut)
    first, again = part.clone(), part.clone()
    member.all_reduce(first, "the all-reduce")
    member.all_reduce(again, "the second all-reduce")
    return {"part": to_bytes(part), "sum": to_bytes(first), "unsteady": not bool(same(first, again).all())}


def _projected(bench: Bench, out: torch.Tensor, positions: torch.Tensor, cut: weights.Weights) -> torch.Tensor:
    """For kernels without an output projection: the reference's, rounded to BF16 at its end."""
    at = weights.table(bench).to(bench.can.device)
    wo_a, wo_b = cut.decoded()
    return attention_output.project(out[:, : bench.heads], positions, at, wo_a, wo_b, bench.groups).bfloat16()
