"""Every tactic: an autotuner may choose any one that fits the shapes, and none of them may be wrong.

A rank's shapes are those of all ranks; each tactic is pinned on each rank all the same, since padding differs.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import MoeLayer, Stack
from conformance.suite import claim
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.bits import same
from suites.moe.random_batch import BATCHES, Batch, Right

_MOST = 12


@claim("moe.tactics.right")
def right(stack: Stack, context: Context) -> Evidence:
    """Raises NotSupported for a kernel that pins none."""
    bench, due = Bench(context), random_batch.right(context)
    if not bench.can.pins_tactics:
        raise NotSupported("the kernel cannot pin tactics: which of them was run is not known")
    batch, findings, worst = random_batch.batch(bench), list[Finding](), dict[int, float]()
    for rank in context.ranks:
        with bench.layer(rank, random_batch.checkpoint(context), context.geometry.swiglu_limit) as layer:
            if not layer.tactics():
                raise NotSupported("the kernel pins tactics, and has none for these shapes")
            for tactic in range(layer.tactics()):
                highest = _judge(bench, layer, rank, tactic, batch, due, findings)
                worst[tactic] = max(worst.get(tactic, 0.0), highest)
    wrong = {tactic: round(value, 4) for tactic, value in worst.items() if value > 1}
    measured: dict[str, Any] = {
        "tactics": len(worst),
        "err/bound, least and most": [round(min(worst.values()), 4), round(max(worst.values()), 4)],
        "over the bound": {str(tactic): value for tactic, value in wrong.items()},
    }
    first = findings[0] if findings else None
    return Evidence(
        ok=not findings,
        summary=f"{len(worst)} tactics are within {max(worst.values()):.3f} of the bound, and repeat bit for bit"
        if first is None
        else f"{first.where}: {first.got}, {first.expected} due; {first.meaning}",
        expected="err/bound at most 1 and the same bits each time, for every tactic",
        measured=measured,
        bound=1.0,
        findings=findings[:_MOST],
        notes=["pinned one GEMM at a time, the other at its first tactic", f"M = {', '.join(map(str, BATCHES))}"],
        method=bench.words,
        seed=context.target.seed,
    )


def _judge(
    bench: Bench, layer: MoeLayer, rank: int, tactic: int, batch: Batch, right: Right, findings: list[Finding]
) -> float:
    """The largest err/bound of one tactic on one rank; what is wrong goes to `findings`, once a tactic and rank."""
    highest, due, told = 0.0, right.due[rank], False
    for m, span in batch.parts()[: len(BATCHES)]:
        first, again = (bench.run(layer, *batch.cut(span), tactic) for _ in range(2))
        ratio = random_batch.off(first, type(due)(*(part[span] for part in due)), right.deviations)
        changed, over = ~same(first, again), ratio > 1
        highest = max(highest, random_batch.highest(ratio))
        if told or not bool((changed | over).any()):
            continue
        told = True
        wrong = over if bool(over.any()) else changed
        token, column = (int(n) for n in torch.nonzero(wrong)[0])
        at = float(ratio[token, column])
        findings.append(
            Finding(
                where=f"tactic {tactic}, rank {rank}, M={m}, token {token}, output {column}",
                expected=f"{float(due.value[span][token, column]):g}",
                got=f"{float(first[token, column]):g}, then {float(again[token, column]):g}",
                meaning=f"{at:.3g} times the bound; {int(over.sum())} outputs are over it, {int(changed.sum())} change",
                rank=rank,
            )
        )
    return highest
