"""Every tensor that no plan cuts: whole on every rank."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import whole


@claim("loader.replicated.whole")
def replicated(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "replicated")
