"""Padding as bytes: garbage in one tail alone meets zeros in the other and stays invisible in every output."""

from __future__ import annotations

from conformance import expected
from conformance.context import Context, due_map
from conformance.provenance.boxes import State
from conformance.provenance.checkpoint import seeded
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import SHARDS, Stack
from conformance.suite import claim
from suites.moe.bench import Bench

_CHUNK = 8  # experts read at a time


@claim("moe.tails.zero")
def tails(stack: Stack, context: Context) -> Evidence:
    """Every padded weight and scale byte that the kernel is given is zero, on every rank, for every expert."""
    bench, findings, padded = Bench(context), list[Finding](), dict[str, int]()
    for rank in context.ranks:
        weights = context.weights(rank, seeded(context.target.seed))
        for name in SHARDS:
            due = due_map(context.target, rank, name, weights.info(name), context.geometry.experts)
            width = expected.kernel_width(name, weights.info(name))
            boxes = [box for box in due.boxes if box.state is State.ZERO]
            padded[f"rank {rank}, {name}"] = sum(box.size for box in boxes) // context.geometry.experts
            for first in range(0, bench.experts, _CHUNK) if boxes else ():
                data = weights.read(name, first, min(first + _CHUNK, bench.experts), bench.device)
                for box in boxes:
                    tail = data[:, box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]
                    if not bool(tail.any()):
                        continue
                    expert, row, col = (int(n) for n in tail.nonzero()[0])
                    findings.append(
                        Finding(
                            where=f"rank {rank}, expert {first + expert}, {name} row {box.rows.start + row}, "
                            f"byte {box.cols.start + col}",
                            expected="zero",
                            got=f"0x{int(tail[expert, row, col]):02X}",
                            meaning=f"padding of a kernel of {width} channels",
                            rank=rank,
                            expert=first + expert,
                        )
                    )
    return Evidence(
        ok=not findings,
        summary="every padded byte that the kernel is given is zero"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, zero due",
        expected="zero",
        measured={"padded bytes an expert": padded},
        findings=findings[:12],
        method=bench.words,
    )
