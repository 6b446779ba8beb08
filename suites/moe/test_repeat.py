"""The same call twice gives the same bits: with pinned tactics where the kernel pins them; but for tokens that crowd,
where it declares that their order may change."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.moe import random_batch
from suites.moe.bench import Bench
from suites.moe.crowding import crowded

_REPEATS = 3
_SIZES = (1, 64)


@claim("moe.repeat.bitwise")
def bitwise(stack: Stack, context: Context) -> Evidence:
    bench, batch, findings, measured = Bench(context), random_batch.batch(Bench(context)), list[Finding](), {}
    for rank in context.ranks:
        with bench.layer(rank, random_batch.checkpoint(context), context.geometry.swiglu_limit) as layer:
            tactic = 0 if bench.can.pins_tactics and layer.tactics() else None
            for m, span in (part for part in batch.parts() if part[0] in _SIZES):
                tokens = [part[span] for part in batch]
                runs = [bench.run(layer, tokens[0], tokens[1], tokens[2], tactic) for _ in range(_REPEATS)]
                crowd = crowded(tokens[1], bench.can.tile_tokens)
                changed = torch.stack([~same(runs[0], again) for again in runs[1:]]).any(0)
                excused, changed = int(changed[crowd].sum()), changed & ~crowd[:, None]
                count = int(changed.sum())
                measured[f"rank {rank}, M={m}"] = f"{count} of {runs[0].numel()} outputs change" + (
                    f", and {excused} of tokens that crowd" if excused else ""
                )
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
    return Evidence(
        ok=not findings,
        summary=f"{_REPEATS} calls give the same bits on every rank"
        if not findings
        else f"{findings[0].where}: {findings[0].got}",
        expected="the same bits",
        measured=measured,
        findings=findings[:12],
        notes=["tactic 0 is pinned" if bench.can.pins_tactics else "the kernel pins no tactics"],
        method=bench.words,
        seed=context.target.seed,
    )


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Bits, element by element: NaN equals itself, and the sign of a zero counts."""
    bits = torch.int16 if a.dtype == torch.bfloat16 else torch.int32
    return a.view(bits) == b.view(bits)
