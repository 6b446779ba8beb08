"""The real heads against FP64, element by element: window alone, with C4's chosen entries, with all of C128's."""

from __future__ import annotations

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.attention import random_scenes


@claim("attention.bound.window")
def window(stack: Stack, context: Context) -> Evidence:
    return random_scenes.judged(context, 0)


@claim("attention.bound.c4")
def c4(stack: Stack, context: Context) -> Evidence:
    return random_scenes.judged(context, 4)


@claim("attention.bound.c128")
def c128(stack: Stack, context: Context) -> Evidence:
    return random_scenes.judged(context, 128)
