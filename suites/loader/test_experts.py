"""Every expert's bytes in that expert's slot: all of them are loaded before any is read."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import SHARDS, Stack
from conformance.suite import claim
from suites.loader import slices


@claim("loader.moe.experts")
def experts(stack: Stack, context: Context) -> Evidence:
    findings, measured = slices.identity(context, tuple(SHARDS), "expert")
    return Evidence(
        ok=not findings,
        summary=f"{context.geometry.experts} experts, each in its own slot" if not findings else findings[0].meaning,
        expected="each expert in its own slot",
        measured=measured,
        findings=findings,
    )
