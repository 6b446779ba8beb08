"""The audit's criterion: the ranks' outputs summed equal the dequantized reference, and the unsharded layer."""

from __future__ import annotations

from typing import Any

import torch

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references.bound import Bounded
from suites.moe import due, random_batch
from suites.moe.bench import Bench
from suites.moe.random_batch import Batch

#: What the figures of a scheme mean. Source: references/moe_staged.py, simulated on a CPU.
_SCHEMES = {
    "bf16_steps": "SiLU, routing weights and weighted slots are stored in BF16 as well: with six slots the relative "
    "error is 1.25 times that of a kernel that keeps them, 1.15 times where BF16 holds the routing weights"
}
_WHOLE = slice(9, 25)  # the batch of M = 16: enough to compare with the unsharded layer


@claim("moe.tp3.reference")
def reference(stack: Stack, context: Context) -> Evidence:
    found, bench = random_batch.measured(context), Bench(context)
    total = torch.stack([got.float() for got in found.got]).sum(0)
    right = found.due[0]
    for more in found.due[1:]:
        right = right + more
    in_bf16 = found.got[0]
    for got in found.got[1:]:
        in_bf16 = (in_bf16.float() + got.float()).bfloat16()
    findings, measured = [], dict[str, Any]()
    for m, span in found.batch.parts():
        ratio = random_batch.off(total, right, found.deviations)[span]
        measured[f"M={m}"] = {
            "err/bound": round(random_batch.highest(ratio), 4),
            "relative, FP32 sum": random_batch.relative(total[span], right.value[span]),
            "relative, BF16 sum": random_batch.relative(in_bf16[span], right.value[span]),
        }
        findings += over(f"sum of {len(found.got)} ranks, M={m}", ratio, total[span], right.value[span])
    one, one_right = _whole(context, bench, found.batch, found.deviations)
    apart = (total[_WHOLE].double() - one.double()).abs()
    room = right.bound(found.deviations)[_WHOLE] + one_right.bound(found.deviations)
    measured["TP1, M=16"] = {
        "err/bound": round(float(random_batch.off(one, one_right, found.deviations).max()), 4),
        "relative to the sum": random_batch.relative(total[_WHOLE], one.double()),
    }
    findings += over("sum against TP1, M=16", (apart / room).nan_to_num(nan=torch.inf), total[_WHOLE], one.double())
    worst = max(part["err/bound"] for part in measured.values())
    return Evidence(
        ok=not findings,
        summary=f"the sum of {len(found.got)} ranks is the reference's and TP1's: err/bound at most {worst:.3f}"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, {findings[0].expected} due; {findings[0].meaning}",
        expected="err/bound at most 1",
        measured=measured,
        bound=1.0,
        findings=findings[:12],
        notes=[
            "ranks are summed in FP32 here; the BF16 sum is what an all-reduce in BF16 leaves, in rank order",
            *([_SCHEMES[bench.can.scheme]] if bench.can.scheme in _SCHEMES else []),
        ],
        method=bench.words,
        seed=context.target.seed,
    )


def _whole(context: Context, bench: Bench, batch: Batch, allowed: float) -> tuple[torch.Tensor, Bounded]:
    """The unsharded layer through the same kernel, and its own bound."""
    x, ids, weights = (part[_WHOLE] for part in batch)
    limit, own = context.geometry.swiglu_limit, bench.own(0, tp=1)
    checkpoint = random_batch.checkpoint(context)
    experts = due.experts(checkpoint, context.geometry, own, bench.device)
    right = random_batch.reference(bench, x, ids, weights, experts, len(own), limit, allowed)
    with bench.layer(0, checkpoint, limit, whole=True) as layer:
        return bench.run(layer, x, ids, weights), right


def over(what: str, ratio: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> list[Finding]:
    highest = random_batch.highest(ratio)
    if highest <= 1:
        return []
    token, column = divmod(int(ratio.argmax()), ratio.shape[1])
    return [
        Finding(
            where=f"{what}, token {token}, output {column}",
            expected=f"{float(want[token, column]):g}",
            got=f"{float(got[token, column]):g}",
            meaning=f"{highest:.3g} times the bound; {int((ratio > 1).sum())} of {ratio.numel()} are over it",
        )
    ]
