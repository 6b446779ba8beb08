"""Custom operators: what they declare against what they do, at two batch sizes, and without a graph break."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.op_measures import SUCCESS, quiet
from conformance.stacks.op_protocol import JudgedOp, Runners
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.moe.bits import same

#: Findings that evidence keeps, and operators that a summary names.
_MOST, _NAMED = 12, 4


class _Found:
    def __init__(self, context: Context, traced: bool = False):
        """`traced`: of the operators those that can be traced. Raises NotSupported where there are none."""
        offered = context.custom_ops
        if not offered:
            raise NotSupported("this stack lists no operators")
        if context.target.capability and not context.target.planting and offered.device == "cpu":
            raise NotSupported(
                "the profile is of a GPU, and no operator but a CPU's can be called here: run it where that GPU is, or "
                "judge these with --profile cpu"
            )
        self.ops: list[JudgedOp] = [op for op in offered if not traced or op.has_fake()]
        self.untraced = [op.name for op in offered if op not in self.ops]
        untraced = [f"{name}: no fake: cannot be compiled" for name in self.untraced]
        self.refused = offered.refused
        self.notes = [*untraced, *offered.notes, *offered.refused]
        if not self.ops:
            raise NotSupported(f"no operator of this stack has a fake: {', '.join(op.name for op in offered)}")
        self.findings: list[Finding] = []
        self.looked = 0

    def find(self, op: JudgedOp, where: str, expected: str, got: str, meaning: str) -> None:
        self.findings.append(Finding(f"{op.name}, {where}", expected, _shortened(got, 400), meaning))

    def evidence(self, right: str) -> Evidence:
        """Raises NotSupported where all that was judged is right, and calls of others raise: those are not proved."""
        head = self.findings[0] if self.findings else None
        if head is None and self.refused:
            raise NotSupported(f"{len(self.ops)} operators are right, and calls of others raise: {self.refused[0]}")
        names = ", ".join(op.name for op in self.ops)
        told = names if len(self.ops) <= _NAMED else f"{len(self.ops)} operators"
        told += f" ({len(self.untraced)} more have no fake)" if self.untraced else ""
        return Evidence(
            ok=head is None and self.looked > 0,
            summary=f"{right}: {told}"
            if head is None
            else f"{head.where}: {head.got}; {head.expected} was due; {head.meaning}",
            expected=f"{self.looked} calls as declared",
            measured={"operators": names},
            findings=self.findings[:_MOST],
            notes=self.notes,
            method=f"{self.ops[0].library}: opcheck and Dynamo",
        )


def _checked(found: _Found, test: str, meaning: str, right: str) -> Evidence:
    """One test of opcheck at both batch sizes."""
    for op in found.ops:
        for batch in op.batches:
            told = op.opcheck(test, batch)
            found.looked += 1
            if told != SUCCESS:
                found.find(op, f"batch of {batch}", "what is declared", told, meaning)
    return found.evidence(right)


def _shortened(text: str, most: int) -> str:
    """The first words on one line, and no half one."""
    return textwrap.shorten(text, most, placeholder=" ...")


@claim("graph.op.schema")
def schema(stack: Stack, context: Context) -> Evidence:
    meaning = "the schema hides a mutation or an alias: compiled code is free to go on with a copy"
    found = _Found(context)
    found.notes += [f"{op.name}: {words}" for op in found.ops if (words := _left_alone(op.untouched()))]
    return _checked(found, "test_schema", meaning, "inputs are mutated and aliased as declared, and in no other way")


def _left_alone(names: list[str]) -> str:
    """A schema that declares too much hides nothing: told, and no failure."""
    told = f"declared as written, and written by no call: {', '.join(names)}"
    return told if names else ""


@claim("graph.op.fake")
def fake(stack: Stack, context: Context) -> Evidence:
    meaning = "compiled code is laid out for another result than the kernel gives"
    right = "shape, dtype and strides are those that the fake announces"
    return _checked(_Found(context, traced=True), "test_faketensor", meaning, right)


@claim("graph.op.alias")
def alias(stack: Stack, context: Context) -> Evidence:
    """Results live on while the operator is called again and again, on other inputs. What it writes into its arguments
    is a result, too."""
    found = _Found(context)
    for op in found.ops:
        for batch in op.batches:
            changed, shared = op.lasting(batch)
            found.looked += 2
            if changed:
                words = "results lie in one buffer of the operator's own"
                found.find(op, f"batch of {batch}", "the first result as it was", "changed by later calls", words)
            if shared:
                words = "an output is another name for memory that somebody else writes"
                found.find(
                    op, f"batch of {batch}", "memory of its own", "that of an input, or of the next result", words
                )
    return found.evidence("results of a call, its inputs and the results of later calls share no memory")


@claim("graph.op.compile")
def compiled(stack: Stack, context: Context) -> Evidence:
    """Traced whole (`fullgraph=True`), with no graph break, and equal to eager bit for bit."""
    found = _Found(context, traced=True)
    for op in found.ops:
        breaks, reason, error = op.explained()
        if error:
            found.find(op, "Dynamo", "a graph", error, "it cannot be traced")
            continue
        if breaks:
            words = _shortened(reason or "no reason is told", 200)
            meaning = f"the compiled model leaves the graph in its midst: {words}"
            found.find(op, "Dynamo", "no graph break", f"{breaks} graph breaks", meaning)
        for batch, equal, error in op.compiled():
            found.looked += 1
            if error:
                found.find(op, f"batch of {batch}", "a result", error, "it is not compiled whole")
            elif not equal:
                found.find(op, f"batch of {batch}", "eager's bits", "others", "compiled and eager disagree")
    return found.evidence("compiled whole, without a graph break, and equal to eager")


@claim("graph.op.recompiles")
def recompiles(stack: Stack, context: Context) -> Evidence:
    """Five batch sizes: one program for the first, one for all others."""
    found, batches = _Found(context, traced=True), (3, 5, 8, 13, 21)
    for op in found.ops:
        made, error = op.programs(batches)
        found.looked += len(batches)
        if error:
            found.find(op, "batches of 3, 5, 8, 13 and 21", "a result", error, "it is not compiled whole")
        elif made > 2:
            words = "every new batch size is compiled while it is waited for"
            found.find(op, "batches of 3, 5, 8, 13 and 21", "two programs at most", f"{made} programs", words)
    return found.evidence("no batch size after the second is compiled")


@claim("graph.op.runners")
def runners(stack: Stack, context: Context) -> Evidence:
    """Objects that an operator finds by number: two of other widths in one compiled graph, another of the same width in
    a graph that was traced with the first, and numbers that are free again."""
    found = _Found(context)
    found.ops = [op for op in found.ops if op.runners]
    if not found.ops:
        raise NotSupported("no operator of this stack finds an object by number (no `runners`): nothing to prove")
    for op in found.ops:
        assert op.runners
        with quiet():
            _by_number(found, op, op.runners)
    return found.evidence("numbers find their own objects, compiled and eager, and none once they are free")


def _by_number(found: _Found, op: JudgedOp, r: Runners) -> None:
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
        found.find(
            op, "a number that was free", "a new number", f"number {later} again", "old graphs find the new object"
        )
    for how, call in (("eager", lambda: r.call(x, first, narrow)), ("compiled", lambda: one(x, first))):
        try:
            call()
        except Exception:
            continue
        found.find(op, f"a number that is free, {how}", "an error", "a result", "something else answers")
    for number in (other, second, later):
        if number != first:
            r.free(number)


def _expect(found: _Found, op: JudgedOp, where: str, call: Callable[[], torch.Tensor], due: torch.Tensor) -> None:
    found.looked += 1
    try:
        got = call()
    except Exception as error:
        found.find(op, where, "a result", f"{type(error).__name__}: {error}", "it is not compiled whole")
        return
    if got.shape != due.shape or not bool(same(got, due).all()):
        found.find(op, where, "eager's bits", f"others, {tuple(got.shape)}", "compiled and eager disagree")
