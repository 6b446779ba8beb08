"""Custom operators on a CPU: what they declare against what they do, at two batch sizes, and without a graph break."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.op_protocol import CustomOp, Runners
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
    logs = [logging.getLogger(f"torch.{name}") for name in ("_dynamo", "_subclasses.fake_tensor")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _traced(found: _Found) -> None:
    for op in found.ops:
        torch._dynamo.reset()
        model = _model(op)
        try:
            told = torch._dynamo.explain(model)(*op.arguments(op.batches[0], 0))
        except Exception as error:
            found.find(op, "Dynamo", "a graph", f"{type(error).__name__}: {error}", "it cannot be traced")
            continue
        if breaks := max(told.graph_break_count, len(told.break_reasons)):  # the count is of graphs, less one
            words = told.break_reasons[0].reason if told.break_reasons else "no reason is told"
            meaning = f"the compiled model leaves the graph in its midst: {' '.join(words.split())[:200]}"
            found.find(op, "Dynamo", "0 graph breaks", str(breaks), meaning)
        torch._dynamo.reset()
        whole = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
        for batch in op.batches:
            arguments = op.arguments(batch, 0)
            found.looked += 1
            _compare(found, op, batch, whole, arguments)


def _model(op: CustomOp) -> Callable[..., torch.Tensor]:
    """Code that calls it: what is hidden from the compiler breaks its caller's graph."""

    def model(*arguments: Any) -> torch.Tensor:
        made: torch.Tensor = op.call(*arguments)
        return made + 0.0

    return model


def _compare(found: _Found, op: CustomOp, batch: int, whole: Any, arguments: tuple[Any, ...]) -> None:
    want = op.call(*_copied(arguments))
    try:
        got = whole(*_copied(arguments))
    except Exception as error:
        found.find(op, f"batch of {batch}", "a result", f"{type(error).__name__}: {error}", "it is not compiled whole")
        return
    if got.shape != want.shape or got.dtype != want.dtype or not bool(same(got, want).all()):
        found.find(op, f"batch of {batch}", "eager's bits", "others", "compiled and eager disagree")


@claim("graph.op.recompiles")
def recompiles(stack: Stack, context: Context) -> Evidence:
    """Five batch sizes: one program for the first, one for all others."""
    import torch._dynamo

    found = _Found(context)
    with _quiet():
        for op in found.ops:
            torch._dynamo.reset()
            made: list[int] = []
            whole = torch.compile(op.call, fullgraph=True, backend=partial(_counting, made))
            for batch in (3, 5, 8, 13, 21):
                found.looked += 1
                whole(*op.arguments(batch, 0))
            if len(made) > 2:
                words = "every new batch size is compiled while it is waited for"
                found.find(op, "batches of 3, 5, 8, 13 and 21", "two programs at most", f"{len(made)}", words)
    torch._dynamo.reset()
    return found.evidence("no batch size after the second is compiled")


def _counting(made: list[int], graph: Any, example_inputs: Any) -> Any:
    made.append(1)
    return graph.forward


@claim("graph.op.runners")
def runners(stack: Stack, context: Context) -> Evidence:
    """Objects that an operator finds by number: two of other widths in one compiled graph, another of the same width in
    a graph that was traced with the first, and numbers that are free again."""
    found = _Found(context)
    found.ops = [op for op in found.ops if op.runners]
    if not found.ops:
        raise NotSupported("no operator of this stack finds an object by number (no `runners`)")
    with _quiet():
        for op in found.ops:
            assert op.runners
            torch._dynamo.reset()
            _by_number(found, op, op.runners)
    torch._dynamo.reset()
    return found.evidence("numbers find their own objects, compiled and eager, and none once they are free")


def _by_number(found: _Found, op: CustomOp, r: Runners) -> None:
    narrow, wide = 24, 40
    first, other, second = r.open(narrow, 1), r.open(wide, 2), r.open(narrow, 3)
    x = r.tokens(op.batches[0], 0)
    due = {number: r.call(x, number, columns) for number, columns in ((first, narrow), (other, wide), (second, narrow))}
    if bool(same(due[first], due[second]).all()):
        found.find(op, "two objects", "results of their own", "one result", "a number finds another's object")

    def both(x: torch.Tensor) -> torch.Tensor:
        left = r.call(x, first, narrow) + x.new_zeros(x.shape[0], narrow)
        return torch.cat([left, r.call(x, other, wide) + x.new_zeros(x.shape[0], wide)], 1)

    whole = torch.compile(both, fullgraph=True, backend="aot_eager")
    one = torch.compile(lambda x, number: r.call(x, number, narrow), fullgraph=True, backend="aot_eager", dynamic=True)
    _expect(found, op, "two widths in one graph", lambda: whole(x), torch.cat([due[first], due[other]], 1))
    _expect(found, op, "traced with its own number", lambda: one(x, first), due[first])
    _expect(found, op, "traced with another's number", lambda: one(x, second), due[second])
    r.free(first)
    later = r.open(narrow, 4)
    found.looked += 2
    if later in due:
        found.find(op, "a number that was free", "a new number", f"{later} again", "old graphs find the new object")
    for how, call in (("eager", lambda: r.call(x, first, narrow)), ("compiled", lambda: one(x, first))):
        try:
            call()
        except Exception:
            continue
        found.find(op, f"a number that is free, {how}", "an error", "a result", "something else answers")
    for number in (other, second, later):
        if number != first:
            r.free(number)


def _expect(found: _Found, op: CustomOp, where: str, call: Callable[[], torch.Tensor], due: torch.Tensor) -> None:
    found.looked += 1
    try:
        got = call()
    except Exception as error:
        found.find(op, where, "a result", f"{type(error).__name__}: {error}", "it is not compiled whole")
        return
    if got.shape != due.shape or not bool(same(got, due).all()):
        found.find(op, where, "eager's bits", f"others, {tuple(got.shape)}", "compiled and eager disagree")


def _copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)
