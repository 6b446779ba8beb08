"""Random inputs, rank by rank: every element within a bound derived from the roundings of this stack's arithmetic."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.random_batch import ALARM


@claim("moe.bound.random")
def random(stack: Stack, context: Context) -> Evidence:
    found, findings, measured, worst = random_batch.measured(context), [], {}, 0.0
    for rank, (got, right) in enumerate(zip(found.got, found.due, strict=True)):
        ratio = random_batch.off(got, right, found.deviations)
        for m, span in found.batch.parts():
            part = ratio[span]
            highest = random_batch.highest(part)
            worst = max(worst, highest)
            measured[f"rank {rank}, M={m}"] = {
                "err/bound": round(highest, 4),
                "relative": random_batch.relative(got[span], right.value[span]),
            }
            if highest > 1:
                token, column = divmod(int(part.argmax()), part.shape[1])
                at = span.start + token
                findings.append(
                    Finding(
                        where=f"rank {rank}, M={m}, token {token}, output {column}",
                        expected=f"{float(right.value[at, column]):g}, "
                        f"give or take {float(right.bound(found.deviations)[at, column]):g}",
                        got=f"{float(got[at, column]):g}",
                        meaning=f"{highest:.3g} times the bound; {int((part > 1).sum())} of {part.numel()} are over it",
                        rank=rank,
                    )
                )
    bench = Bench(context)
    return Evidence(
        ok=not findings,
        summary=f"err/bound at most {worst:.3f} over M = {random_batch.sizes(found.batch)} on {len(found.got)} ranks"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, {findings[0].expected} due; {findings[0].meaning}",
        expected="err/bound at most 1",
        measured=measured,
        bound=1.0,
        findings=findings[:12],
        notes=[
            f"lambda {found.deviations:.2f}: one false alarm in {1 / ALARM:g} runs over all elements",
            "activations are mirrored, flipped codes have room"
            if bench.can.scheme in ("mxfp8", "nvfp4")
            else "every rounding is noise around the exact FP64 result",
        ],
        method=bench.words,
        seed=context.target.seed,
    )
