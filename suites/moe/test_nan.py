"""NaN and Inf in the input: they must show in their own token's output, and in no other's.

A kernel may declare that its clamp swallows them (`min(NaN, limit)` is the limit on GPUs, and FlashInfer's SM90 kernel
does that); then the evidence says so, since "no NaN in the output" proves nothing there.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.moe import random_batch
from suites.moe.bench import Bench

#: token of the M = 8 batch -> what is put into one of its inputs
_SPOILED = {3: torch.nan, 5: torch.inf}
_INPUT = 5


@claim("moe.nan.visible")
def visible(stack: Stack, context: Context) -> Evidence:
    bench, limit = Bench(context), context.geometry.swiglu_limit
    batch = random_batch.batch(bench)
    span = batch.parts()[1][1]
    x, ids, weights = (part[span] for part in batch)
    spoiled = x.clone()
    for token, value in _SPOILED.items():
        spoiled[token, _INPUT] = value
    others = [token for token in range(len(x)) if token not in _SPOILED]
    findings, measured, swallowed = list[Finding](), dict[str, Any](), list[str]()
    for rank in context.ranks:
        with bench.layer(rank, random_batch.checkpoint(context), limit) as layer:
            clean, got = bench.run(layer, x, ids, weights), bench.run(layer, spoiled, ids, weights)
        if not torch.equal(clean[others], got[others]):
            findings.append(_finding(rank, "other tokens", "bit for bit as without it", "changed"))
        for token, value in _SPOILED.items():
            shown = int((~got[token].isfinite()).sum())
            measured[f"rank {rank}, {value} in token {token}"] = f"{shown} of {got.shape[1]} outputs are not finite"
            if not shown:
                swallowed.append(f"rank {rank}: {value} in the input leaves a finite, wrong row")
                if bench.can.nan == "visible":
                    findings.append(_finding(rank, f"token {token}", f"{value} shows", "a finite row"))
    return Evidence(
        ok=not findings,
        summary=findings[0].where + f": {findings[0].got}"
        if findings
        else "NaN and Inf are swallowed, as declared: finite outputs prove nothing"
        if swallowed
        else "NaN and Inf in the input show in their own token's output, and there alone",
        expected=f"{bench.can.nan} in their own token, nothing elsewhere",
        measured=measured,
        findings=findings[:12],
        notes=swallowed[:12],
        method=bench.words,
        seed=context.target.seed,
    )


def _finding(rank: int, what: str, due: str, got: str) -> Finding:
    return Finding(f"rank {rank}, {what}, one input spoiled", due, got, "a NaN would be served as an answer", rank=rank)
