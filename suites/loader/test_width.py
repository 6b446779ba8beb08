"""Do the built parameters have the width that the backend's kernel wants, and room for a rank's shard?"""

from __future__ import annotations

from conformance import expected
from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import SHARDS, Stack
from conformance.suite import claim
from references import plan


@claim("loader.moe.width")
def width(stack: Stack, context: Context) -> Evidence:
    t = context.target
    per_rank = plan.routed_intermediate(t.geometry.intermediate, t.tp).per_rank
    due = sorted({plan.kernel_width(per_rank, rounding) for rounding in t.intermediate_roundings})
    measured: dict[str, dict[str, int]] = {}
    findings = []
    for rank in context.ranks:
        info = context.experts_info(rank)
        widths = {name: expected.kernel_width(name, info.parameters[name]) for name in SHARDS}
        measured[f"rank {rank}"] = widths
        findings += [
            Finding(
                where=f"rank {rank}, {name} of shape ({info.parameters[name].rows}, {info.parameters[name].cols})",
                expected=" or ".join(map(str, due)) + " elements",
                got=f"{have} elements",
                meaning=f"{per_rank} elements a rank, rounded up for {t.backend}",
                rank=rank,
            )
            for name, have in widths.items()
            if have not in due
        ]
    return Evidence(
        ok=not findings,
        summary=f"{per_rank} elements a rank in kernels of {' or '.join(map(str, due))} ({t.backend})"
        if not findings
        else findings[0].where + ": " + findings[0].got,
        expected=due,
        measured=measured,
        findings=findings,
        notes=context.experts_info(0).notes,
    )
