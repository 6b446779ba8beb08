"""The same call twice gives the same bits: with pinned tactics where the kernel pins them; but for tokens that crowd,
where it declares that their order may change, and these within their bound."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.bits import same
from suites.moe.crowding import Excuses, Tokens

_REPEATS = 3
_SIZES = (1, 64)


@claim("moe.repeat.bitwise")
def bitwise(stack: Stack, context: Context) -> Evidence:
    bench, batch, findings, measured = Bench(context), random_batch.batch(Bench(context)), list[Finding](), {}
    excuses = Excuses(bench)
    for rank in context.ranks:
        with bench.layer(rank, random_batch.checkpoint(context), context.geometry.swiglu_limit) as layer:
            tactic = 0 if bench.can.pins_tactics and layer.tactics() else None
            for m, span in (part for part in batch.parts() if part[0] in _SIZES):
                tokens = Tokens(*batch.cut(span))
                runs = [bench.run(layer, *tokens, tactic) for _ in range(_REPEATS)]
                again = [
                    excuses.due(rank, f"M={m}, call {n}", run, runs[0], tokens) for n, run in enumerate(runs[1:], 2)
                ]
                changed = torch.stack([~same(run, due) for run, due in zip(runs[1:], again, strict=True)]).any(0)
                count = int(changed.sum())
                measured[f"rank {rank}, M={m}"] = f"{count} of {runs[0].numel()} outputs change"
                if count:
                    token, column = (int(n) for n in changed.nonzero()[0])
                    values = [f"{float(run[token, column]):.8g}" for run in runs]
                    findings.append(
                        Finding(
                            where=f"rank {rank}, M={m}, token {token}, output {column}",
                            expected=f"{values[0]} each time",
                            got=", ".join(values),
                            meaning=f"{count} outputs change from call to call: a race, or a sum in changing order",
                            rank=rank,
                        )
                    )
    outside, excused = excuses.judged()
    findings += outside
    return Evidence(
        ok=not findings,
        summary=f"{_REPEATS} calls give the same bits on every rank"
        if not findings
        else f"{findings[0].where}: {findings[0].got}",
        expected="the same bits",
        measured=measured,
        findings=findings[:12],
        notes=["tactic 0 is pinned" if bench.can.pins_tactics else "the kernel pins no tactics", *excused],
        method=bench.words,
        seed=context.target.seed,
    )
