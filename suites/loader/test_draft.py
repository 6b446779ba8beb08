"""The draft (MTP) model: its tensors land as the target's tensors of the same name do."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import whole
from suites.loader.test_checkpoint import consumption, writing


@claim("loader.draft.offsets")
def offsets(stack: Stack, context: Context) -> Evidence:
    return whole.every(context, whole.offsets, draft=True)


@claim("loader.draft.tails")
def tails(stack: Stack, context: Context) -> Evidence:
    return whole.every(context, whole.tails, draft=True)


@claim("loader.draft.partition")
def partition(stack: Stack, context: Context) -> Evidence:
    return whole.every(context, whole.partition, draft=True)


@claim("loader.draft.replicated")
def replicated(stack: Stack, context: Context) -> Evidence:
    return whole.offsets(context, "replicated", draft=True)


@claim("loader.draft.consumed")
def consumed(stack: Stack, context: Context) -> Evidence:
    return consumption(context, draft=True)


@claim("loader.draft.written")
def written(stack: Stack, context: Context) -> Evidence:
    return writing(context, draft=True)
