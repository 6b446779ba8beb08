"""Custom operators on a CPU: what they declare against what they do, at two batch sizes, and without a graph break."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.op_protocol import CustomOp
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.moe.test_repeat import same

_MOST = 12


class _Found:
    def __init__(self, context: Context):
        self.ops = context.custom_ops
        self.findings: list[Finding] = []
        self.looked = 0

    def find(self, op: CustomOp, where: str, expected: str, got: str, meaning: str) -> None:
        self.findings.append(Finding(f"{op.name}, {where}", expected, " ".join(got.split())[:400], meaning))

    def evidence(self, right: str) -> Evidence:
        head = self.findings[0] if self.findings else None
        names = ", ".join(op.name for op in self.ops)
        return Evidence(
            ok=head is None and self.looked > 0,
            summary=f"{right}: {names}" if head is None else f"{head.where}: {head.got}; {head.meaning}",
            expected=f"{self.looked} calls as declared",
            measured={"operators": names},
            findings=self.findings[:_MOST],
            method=f"torch {torch.__version__}: opcheck and Dynamo, on a CPU",
        )


def _checked(context: Context, test: str, meaning: str, right: str) -> Evidence:
    """One test of opcheck at both batch sizes."""
    found = _Found(context)
    for op in found.ops:
        for batch in op.batches:
            told = torch.library.opcheck(op.op, op.arguments(batch, 0), test_utils=test, raise_exception=False)
            found.looked += 1
            if told[test] != "SUCCESS":
                found.find(op, f"batch of {batch}", "what is declared", str(told[test]), meaning)
    return found.evidence(right)


@claim("graph.op.schema")
def schema(stack: Stack, context: Context) -> Evidence:
    meaning = "the schema hides a mutation or an alias: compiled code is free to go on with a copy"
    return _checked(context, "test_schema", meaning, "inputs are mutated and aliased as declared, and in no other way")


@claim("graph.op.fake")
def fake(stack: Stack, context: Context) -> Evidence:
    meaning = "compiled code is laid out for another result than the kernel gives"
    return _checked(context, "test_faketensor", meaning, "shape, dtype and strides are those that the fake announces")


@claim("graph.op.alias")
def alias(stack: Stack, context: Context) -> Evidence:
    """A result lives on while the operator is called again, on other inputs and on its own inputs' memory."""
    found = _Found(context)
    for op in found.ops:
        for batch in op.batches:
            first, other = op.arguments(batch, 0), op.arguments(batch, 1)
            before = op.op(*first)
            kept = before.clone()
            again = op.op(*other)
            found.looked += 2
            if not bool(same(before, kept).all()):
                words = "results lie in one buffer of the operator's own"
                found.find(op, f"batch of {batch}", "the first result as it was", "changed by a second call", words)
            given = [argument for argument in first if isinstance(argument, torch.Tensor)]
            if _memory(before) in {*map(_memory, given), _memory(again)}:
                words = "an output is another name for memory that somebody else writes"
                found.find(op, f"batch of {batch}", "memory of its own", "an input's, or the next call's", words)
    return found.evidence("results of two calls, and their inputs, share no memory")


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@claim("graph.op.compile")
def compiled(stack: Stack, context: Context) -> Evidence:
    """Traced whole (`fullgraph=True`), with no graph break, and equal to eager bit for bit."""
    import torch._dynamo

    found = _Found(context)
    with _quiet():
        _traced(found)
    torch._dynamo.reset()
    return found.evidence("compiled whole, without a graph break, and equal to eager")


@contextmanager
def _quiet() -> Iterator[None]:
    """Findings say what Dynamo would warn of."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _traced(found: _Found) -> None:
    for op in found.ops:
        torch._dynamo.reset()
        try:
            told = torch._dynamo.explain(op.call)(*op.arguments(op.batches[0], 0))
        except Exception as error:
            found.find(op, "Dynamo", "a graph", f"{type(error).__name__}: {error}", "it cannot be traced")
            continue
        if breaks := max(told.graph_break_count, len(told.break_reasons)):  # the count is of graphs, less one
            words = told.break_reasons[0].reason if told.break_reasons else "no reason is told"
            meaning = f"the compiled model leaves the graph in its midst: {' '.join(words.split())[:200]}"
            found.find(op, "Dynamo", "0 graph breaks", str(breaks), meaning)
        torch._dynamo.reset()
        whole = torch.compile(op.call, fullgraph=True, backend="aot_eager", dynamic=True)
        for batch in op.batches:
            arguments = op.arguments(batch, 0)
            found.looked += 1
            _compare(found, op, batch, whole, arguments)


def _compare(found: _Found, op: CustomOp, batch: int, whole: Any, arguments: tuple[Any, ...]) -> None:
    want = op.call(*_copied(arguments))
    try:
        got = whole(*_copied(arguments))
    except Exception as error:
        found.find(op, f"batch of {batch}", "a result", f"{type(error).__name__}: {error}", "it is not compiled whole")
        return
    if got.shape != want.shape or got.dtype != want.dtype or not bool(same(got, want).all()):
        found.find(op, f"batch of {batch}", "eager's bits", "others", "compiled and eager disagree")


def _copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)
