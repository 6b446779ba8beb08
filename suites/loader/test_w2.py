"""W2 and its scales: two elements a byte, 32 a scale; cut along columns. Bytes 0/352/704, groups 0/22/44 at TP3."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import slices


@claim("loader.w2.offsets")
def offsets(stack: Stack, context: Context) -> Evidence:
    return slices.offsets(context, "w2_weight")


@claim("loader.w2.tails")
def tails(stack: Stack, context: Context) -> Evidence:
    return slices.tails(context, "w2_weight")


@claim("loader.w2.partition")
def partition(stack: Stack, context: Context) -> Evidence:
    return slices.partition(context, "w2_weight")


@claim("loader.w2_scale.offsets")
def scale_offsets(stack: Stack, context: Context) -> Evidence:
    return slices.offsets(context, "w2_weight_scale")


@claim("loader.w2_scale.tails")
def scale_tails(stack: Stack, context: Context) -> Evidence:
    return slices.tails(context, "w2_weight_scale")


@claim("loader.w2_scale.partition")
def scale_partition(stack: Stack, context: Context) -> Evidence:
    return slices.partition(context, "w2_weight_scale")


@claim("loader.w2.alignment")
def alignment(stack: Stack, context: Context) -> Evidence:
    return slices.alignment(context, "w2_weight", "w2_weight_scale")
