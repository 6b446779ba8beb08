"""Custom operators and first calls: silent on the reference stack, and each fault is seen for what it is."""

from __future__ import annotations

import re
import threading

import msgspec
import pytest

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.faults.catalogue import FAULTS
from conformance.faults.parts import planted_parts
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks import parts
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target
from suites.graph.test_threads import _Threads

TARGET = Target(geometry.load("deepseek-v4-tiny"), 3, "flashinfer_cutlass", None, None, (128,), (128,))
CLAIMS = [c.id for c in catalogue.claims().values() if c.group in ("graph.op", "graph.jit")]


def _context(fault="") -> tuple[ReferenceStack, Context]:
    stack = ReferenceStack(StackOptions(emulate={"intermediate": 128, "hidden": 128}, arithmetic="bf16"))
    offers = parts.of(stack)
    context = Context(TARGET, None, None, planted_parts(offers, FAULTS[fault]) if fault else offers)
    context.ranks = range(1, 2)
    return stack, context


@pytest.mark.parametrize("claim", CLAIMS)
def test_silent_on_the_clean_stack(claim):
    status, reason, _ = evaluate(catalogue.get(claim), *_context())
    assert (status, reason) == (Status.PASS, "")


@pytest.mark.parametrize(
    ("fault", "claim", "words"),
    [
        ("op-fake-shape", "op.fake", "batch of 8: .*[Ss]hape"),
        ("op-fake-dtype", "op.fake", "bfloat16 are not equal"),
        ("op-fake-stride", "op.fake", "[Ss]tride"),
        ("op-fake-batch", "op.fake", "batch of 5: .*[Ss]hape"),
        ("op-returns-input", "op.schema", "alias"),
        ("op-returns-input", "op.alias", "that of an input, or of the next result"),
        ("op-returns-buffer", "op.alias", "changed by later calls"),
        ("op-mutates-input", "op.schema", "mutat"),
        ("op-graph-break", "op.compile", "Dynamo: [12]"),
        ("op-disabled", "op.compile", "batch of 8: Unsupported"),
        ("op-each-size", "op.recompiles", "batches of 3, 5, 8, 13 and 21: 5"),
        ("op-numbers-again", "op.runners", "a number that was free: number [0-9]+ again"),
        ("op-found-at-trace", "op.runners", "traced with another's number: others"),
        ("op-width-of-first", "op.runners", "two widths in one graph: .*it is not compiled whole"),
        ("op-free-answers", "op.runners", "a number that is free, eager: a result"),
        ("op-branching", "op.compile", "Dynamo: 1"),
        ("jit-first-size", "jit.shapes", "M=64 after 1, "),
        ("jit-larger-left", "jit.shapes", "M=1 after 1, 64, "),
        ("jit-first-address", "jit.memory", "the second allocation, .*: nan; the first call's memory is read"),
        ("jit-by-address", "jit.memory", "other tokens in the same memory, .* kept by the address"),
        ("jit-first-clobbers", "jit.memory", "clobbered .64 in all"),
        ("jit-published-empty", "jit.threads", "M=11, thread [01], token 0, output 0: -?0; calls at the same time"),
        ("jit-built-twice", "jit.threads", "M=37, thread [01], token 0, output 0: "),
        ("jit-scratch-shared", "jit.threads", "M=37, thread [01], token 0, output 0: "),
        ("jit-table-in-capture", "jit.tables", "M=1 in eager after a capture, token 0, output 0: NaN"),
        ("jit-table-in-capture", "jit.tables", "M=1 in a second graph, .*: NaN"),
    ],
)
def test_words_of_failures(fault, claim, words):
    status, _, evidence = evaluate(catalogue.get(f"graph.{claim}"), *_context(fault))
    told = [f"{found.where}: {found.got}; {found.meaning}" for found in evidence.findings]
    assert status is Status.FAIL
    assert [one for one in told if re.search(words, one)], told


def test_a_constant_batch_is_right_at_that_batch():
    """Why two sizes are asked."""
    _, _, evidence = evaluate(catalogue.get("graph.op.fake"), *_context("op-fake-batch"))
    assert not [found for found in evidence.findings if "batch of 8" in found.where]


def test_a_kernel_that_does_not_declare_threads_is_not_asked(monkeypatch):
    stack, context = _context()
    one = msgspec.structs.replace(stack.moe().capabilities(), threads=False)
    monkeypatch.setattr(type(stack.moe()), "capabilities", lambda self: one)
    status, reason, _ = evaluate(catalogue.get("graph.jit.threads"), stack, context)
    assert status is Status.NOT_SUPPORTED and "`threads`" in reason


@pytest.mark.parametrize(
    ("wait", "due", "words"),
    [(0.2, Status.TIMEOUT, "M=11: 2 of 2 threads .* in 0.2 s"), (None, Status.ERROR, "ZeroDivisionError")],
)
def test_a_thread_that_hangs_or_raises(wait, due, words, monkeypatch):
    never = threading.Event()
    stack, context = _context()
    monkeypatch.setattr("suites.graph.test_threads._LIMIT", wait or 60.0)
    monkeypatch.setattr(_Threads, "call", lambda *_: never.wait() if wait else 1 / 0)
    status, reason, _ = evaluate(catalogue.get("graph.jit.threads"), stack, context)
    never.set()
    assert status is due and re.search(words, reason)


def test_a_stack_without_operators():
    stack, context = _context()
    del context._parts["custom_ops"]
    status, reason, _ = evaluate(catalogue.get("graph.op.fake"), stack, context)
    assert status is Status.NOT_SUPPORTED and "no `custom_ops()`" in reason
