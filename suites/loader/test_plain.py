"""Models of plain attention (gpt-oss): q, k, v and o projections with their biases by heads, the experts' biases."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import whole


@claim("loader.qkvo.offsets")
def qkvo_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "qkvo")


@claim("loader.qkvo.partition")
def qkvo_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "qkvo")


@claim("loader.expert_bias.offsets")
def bias_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "expert_bias")


@claim("loader.expert_bias.tails")
def bias_tails(stack: Stack, context: Context) -> Evidence:
    return whole.tails(context, "expert_bias")


@claim("loader.expert_bias.partition")
def bias_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "expert_bias")
