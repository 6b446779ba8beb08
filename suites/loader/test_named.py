"""The routed experts once more, through the model's own load_weights, by checkpoint name."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import whole


@claim("loader.routed.offsets")
def routed_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "routed")


@claim("loader.routed.tails")
def routed_tails(stack: Stack, context: Context) -> Evidence:
    return whole.tails(context, "routed")


@claim("loader.routed.partition")
def routed_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "routed")


@claim("loader.routed.alignment")
def routed_alignment(stack: Stack, context: Context) -> Evidence:
    return whole.alignment(context, "routed")
