"""Attention projections that are cut: wq_b by heads (0/12288/24576 at TP3), wo_a and wo_b by groups (0/3072/6144)."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import whole


@claim("loader.wq_b.offsets")
def wq_b_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "wq_b")


@claim("loader.wq_b.tails")
def wq_b_tails(stack: Stack, context: Context) -> Evidence:
    return whole.tails(context, "wq_b")


@claim("loader.wq_b.partition")
def wq_b_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "wq_b")


@claim("loader.wq_b.alignment")
def wq_b_alignment(stack: Stack, context: Context) -> Evidence:
    return whole.alignment(context, "wq_b")


@claim("loader.wo_a.offsets")
def wo_a_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "wo_a")


@claim("loader.wo_a.tails")
def wo_a_tails(stack: Stack, context: Context) -> Evidence:
    return whole.tails(context, "wo_a")


@claim("loader.wo_a.partition")
def wo_a_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "wo_a")


@claim("loader.wo_a.alignment")
def wo_a_alignment(stack: Stack, context: Context) -> Evidence:
    return whole.alignment(context, "wo_a")


@claim("loader.wo_b.offsets")
def wo_b_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "wo_b")


@claim("loader.wo_b.tails")
def wo_b_tails(stack: Stack, context: Context) -> Evidence:
    return whole.tails(context, "wo_b")


@claim("loader.wo_b.partition")
def wo_b_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "wo_b")


@claim("loader.wo_b.alignment")
def wo_b_alignment(stack: Stack, context: Context) -> Evidence:
    return whole.alignment(context, "wo_b")
