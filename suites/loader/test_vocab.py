"""The embedding and the output head, cut along vocabulary rows. 0/43136/86272 at TP3."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import whole


@claim("loader.vocab.offsets")
def vocab_offsets(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "vocab")


@claim("loader.vocab.tails")
def vocab_tails(stack: Stack, context: Context) -> Evidence:
    return whole.tails(context, "vocab")


@claim("loader.vocab.partition")
def vocab_partition(stack: Stack, context: Context) -> Evidence:
    return whole.partition(context, "vocab")
