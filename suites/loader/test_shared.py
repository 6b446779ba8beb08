"""The shared expert: gate and up cut along rows, down along columns, in FP8 blocks of 128. 0/768/1536 at TP3."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import whole


@claim("loader.shared_gate_up.offsets")
def shared_gate_up_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "shared_gate_up")


@claim("loader.shared_gate_up.tails")
def shared_gate_up_tails(stack: Stack, context: Context) -> Evidence:
    return whole.tails(context, "shared_gate_up")


@claim("loader.shared_gate_up.partition")
def shared_gate_up_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "shared_gate_up")


@claim("loader.shared_gate_up.alignment")
def shared_gate_up_alignment(stack: Stack, context: Context) -> Evidence:
    return whole.alignment(context, "shared_gate_up")


@claim("loader.shared_down.offsets")
def shared_down_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "shared_down")


@claim("loader.shared_down.tails")
def shared_down_tails(stack: Stack, context: Context) -> Evidence:
    return whole.tails(context, "shared_down")


@claim("loader.shared_down.partition")
def shared_down_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "shared_down")


@claim("loader.shared_down.alignment")
def shared_down_alignment(stack: Stack, context: Context) -> Evidence:
    return whole.alignment(context, "shared_down")
