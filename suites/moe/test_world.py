"""All ranks at once, each in a process and on a device of its own, joined by a real all-reduce.

Where that cannot be (one GPU for three ranks), the ranks run in turn, their parts are summed here in rank order, and
the evidence says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import torch

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import allreduce
from references.bound import all_reduced
from suites.joined import joined
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.ranks import from_bytes
from suites.moe.test_tp import over

#: Read back on each rank in its own process; in turn only the first, since the others would be what they were before.
_PROBES = ("moe.exact.w2", "moe.exact.w2_scale", "moe.exact.w1", "moe.exact.w3", "moe.exact.w13_scale")
_MOST = 12


@claim("moe.world.exact")
def exact(stack: Stack, context: Context) -> Evidence:
    """The exact probes of each rank, run by all ranks at the same time."""
    world, bench = context.world, Bench(context)
    probes = list(_PROBES if world.together else _PROBES[:1])
    told = world.each("suites.moe.ranks:checks", claims=probes)
    by_rank = [[msgspec.convert(evidence, Evidence) for evidence in evidences] for evidences in told]
    findings, measured = list[Finding](), dict[str, Any]()
    for rank, evidences in enumerate(by_rank):
        for name, evidence in zip(probes, evidences, strict=True):
            measured[f"rank {rank}, {name}"] = {"compared": evidence.expected, "differ": evidence.measured}
            findings += evidence.findings[:1]
            if evidence.ok != (not evidence.findings):
                findings.append(Finding(f"rank {rank}, {name}", "values compared", evidence.summary, rank=rank))
    notes = [] if world.together else ["the other exact probes are those of moe.exact.*: there too, ranks ran in turn"]
    return Evidence(
        ok=not findings,
        summary=f"{len(probes)} exact probes on each of {len(by_rank)} ranks, {world.words}"
        if not findings
        else _first(findings),
        expected="every value bit for bit, on every rank",
        measured=measured,
        findings=findings[:_MOST],
        notes=notes,
        method=bench.told(world.words),
        seed=context.target.seed,
    )


@claim("moe.world.sum")
def summed(stack: Stack, context: Context) -> Evidence:
    """Each rank's part within its own bound; the all-reduce one of the sums that BF16 has, alike on all ranks and each
    time; the sum within the bound of the reference."""
    bench, world, right = Bench(context), context.world, random_batch.right(context)
    batch = random_batch.batch(bench)
    got = _Got.of(world.each("suites.moe.ranks:sums"), batch.x, getattr(torch, bench.can.output))
    due, allowed = all_reduced(right.due), right.deviations
    findings, measured = list[Finding](), dict[str, Any]()
    for m, span in batch.parts():
        parts = [part[span] for part in got.parts]
        for rank, (part, of_rank) in enumerate(zip(parts, right.due, strict=True)):
            ratio = random_batch.off(part, type(of_rank)(*(t[span] for t in of_rank)), allowed)
            findings += [_of_rank(f, rank) for f in over(f"rank {rank}, M={m}", ratio, part, of_rank.value[span])]
        unsteady = [rank for rank, sizes in got.unsteady.items() if m in sizes]
        totals = [total[span] for total in got.totals] if world.together else []
        findings += joined(f"M={m}", parts, totals, unsteady)
        total = got.totals[0][span]
        ratio = random_batch.off(total, type(due)(*(t[span] for t in due)), allowed)
        findings += over(f"{'all-reduce' if world.together else 'sum'}, M={m}", ratio, total, due.value[span])
        in_fp32 = torch.stack([part.float() for part in parts]).sum(0)
        measured[f"M={m}"] = {
            "err/bound": round(random_batch.highest(ratio), 4),
            "relative, FP32 sum": random_batch.relative(in_fp32, due.value[span]),
            "relative, BF16 sum": random_batch.relative(total, due.value[span]),
        }
    worst = max(part["err/bound"] for part in measured.values())
    kind = "the BF16 all-reduce" if world.together else "the BF16 sum in rank order (no all-reduce ran)"
    return Evidence(
        ok=not findings,
        summary=f"{kind} of {len(got.parts)} ranks is within {worst:.3f} of its bound; ranks {world.words}"
        if not findings
        else _first(findings),
        expected="each part and the sum within the bound; the sum one that BF16 additions give, alike on all ranks",
        measured=measured,
        bound=1.0,
        findings=findings[:_MOST],
        notes=[
            f"lambda {allowed:.2f}; the all-reduce's own roundings are in the bound",
            f"all orders of adding are listed for up to {allreduce.MOST} ranks; for more, a bound of them",
        ],
        method=bench.told(world.words),
        seed=context.target.seed,
    )


class _Got(NamedTuple):
    """By rank: its part (tokens, H) and the sum as it has it; batch sizes whose second all-reduce differed."""

    parts: list[torch.Tensor]
    totals: list[torch.Tensor]
    unsteady: dict[int, list[int]]

    @classmethod
    def of(cls, told: list[dict[str, Any]], like: torch.Tensor, dtype: torch.dtype) -> _Got:
        parts = [from_bytes(one["part"], like, dtype) for one in told]
        if told[0]["sum"] or not like.numel():
            totals = [from_bytes(one["sum"], like, dtype) for one in told]
        else:
            total = parts[0]
            for part in parts[1:]:
                total = (total.float() + part.float()).to(dtype)
            totals = [total]
        return cls(parts, totals, {rank: one["unsteady"] for rank, one in enumerate(told)})


def _of_rank(finding: Finding, rank: int) -> Finding:
    return msgspec.structs.replace(finding, rank=rank)


def _first(findings: list[Finding]) -> str:
    one = findings[0]
    return f"{one.where}: {one.got}, {one.expected} due" + (f"; {one.meaning}" if one.meaning else "")
