"""The attention sinks: a rank's heads, and -inf behind them. 24/24/16 finite of 32 at TP3."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import whole


@claim("loader.sink.offsets")
def sink_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "sink")


@claim("loader.sink.tails")
def sink_tails(stack: Stack, context: Context) -> Evidence:
    return whole.tails(context, "sink")


@claim("loader.sink.partition")
def sink_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "sink")
