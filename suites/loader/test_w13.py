"""W1 and W3, the halves of W13, and their scales: cut along rows. Rows 0/704/1408 at TP3."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import slices


@claim("loader.w13.offsets")
def offsets(stack: Stack, context: Context) -> Evidence:
    return slices.offsets(context, "w13_weight")


@claim("loader.w13.tails")
def tails(stack: Stack, context: Context) -> Evidence:
    return slices.tails(context, "w13_weight")


@claim("loader.w13.partition")
def partition(stack: Stack, context: Context) -> Evidence:
    return slices.partition(context, "w13_weight")


@claim("loader.w13_scale.offsets")
def scale_offsets(stack: Stack, context: Context) -> Evidence:
    return slices.offsets(context, "w13_weight_scale")


@claim("loader.w13_scale.tails")
def scale_tails(stack: Stack, context: Context) -> Evidence:
    return slices.tails(context, "w13_weight_scale")


@claim("loader.w13_scale.partition")
def scale_partition(stack: Stack, context: Context) -> Evidence:
    return slices.partition(context, "w13_weight_scale")


@claim("loader.w13.alignment")
def alignment(stack: Stack, context: Context) -> Evidence:
    return slices.alignment(context, "w13_weight", "w13_weight_scale")


@claim("loader.w13.order")
def order(stack: Stack, context: Context) -> Evidence:
    """As loaded: W1 (gate) first, W3 (up) second. The kernel's own order is made after loading."""
    findings, measured = slices.identity(context, ("w13_weight", "w13_weight_scale"), "shard")
    return Evidence(
        ok=not findings,
        summary="W1 fills the first half, W3 the second" if not findings else findings[0].meaning,
        expected="W1 first, W3 second",
        measured=measured,
        findings=findings,
    )
