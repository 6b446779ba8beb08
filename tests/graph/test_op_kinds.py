"""Operators of other kinds than the reference stack's: results written into arguments, several at a time, float8
inputs, and what cannot be traced. Each is silent when right, and its fault is seen."""

from __future__ import annotations

import itertools
import re

import msgspec
import pytest
import torch

from conformance import catalogue
from conformance.context import Context
from conformance.faults import ops as faults
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks.op_protocol import CustomOp, Listed
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from tests.graph.test_ops import TARGET

STACK = ReferenceStack(StackOptions(arithmetic="bf16"))

CLAIMS = [f"graph.op.{name}" for name in ("schema", "fake", "alias", "compile", "recompiles")]
_LIBRARY = torch.library.Library("conformance_kinds", "FRAGMENT")
_NUMBER = itertools.count()


def _op(schema, body, arguments, fake=None):
    name = f"op{next(_NUMBER)}"
    _LIBRARY.define(name + schema)
    _LIBRARY.impl(name, body, "CPU")
    if fake:
        torch.library.register_fake(f"conformance_kinds::{name}", fake, lib=_LIBRARY)
    packet = getattr(torch.ops.conformance_kinds, name)
    return CustomOp(packet.default, packet, arguments)


def _values(batch, number):
    return torch.randn(batch, 24, generator=torch.Generator().manual_seed(1000 * batch + number))


def _out(body=lambda out, x: out.copy_(2 * x)):
    """Writes into an argument, returns nothing, and has no fake: none is needed."""

    def real(out, x):
        body(out, x)

    return _op("(Tensor! out, Tensor x) -> ()", real, lambda b, n: (torch.ones(b, 24), _values(b, n)))


def _pair(body=lambda x: (2 * x, x.sum(1)), fake=lambda x: (torch.empty_like(x), x.new_empty(x.shape[0]))):
    return _op("(Tensor x) -> (Tensor, Tensor)", body, lambda b, n: (_values(b, n),), fake)


def _codes(body=lambda x: x.float()):
    def arguments(batch, number):
        return (_values(batch, number).to(torch.float8_e4m3fn),)

    return _op("(Tensor x) -> Tensor", body, arguments, lambda x: x.new_empty(x.shape, dtype=torch.float32))


def _untraced():
    return _op("(Tensor x) -> Tensor", lambda x: 2 * x, lambda b, n: (_values(b, n),))


def _told(claim, *ops, notes=()):
    context = Context(TARGET, None, None, {"custom_ops": lambda: Listed(ops, notes)})
    return evaluate(catalogue.get(claim), STACK, context)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("op", [_out, _pair, _codes])
def test_silent(op, claim):
    status, reason, _ = _told(claim, op())
    assert (status, reason) == (Status.PASS, "")


def _first_again():
    """Writes into what it was given first, too."""
    held = []

    def body(out, x):
        held.append(out)
        out.copy_(2 * x)
        held[0].copy_(out) if held[0].shape == out.shape else held.clear()

    return _out(body)


def _second_kept():
    """The second of two results lies in one buffer."""
    buffer = torch.empty(64)
    return _pair(lambda x: (2 * x, buffer[: len(x)].copy_(x.sum(1))))


def _spoiling(out, x):
    out.copy_(2 * x)
    x.mul_(0.5)


def _spoiling_codes(x):
    made = x.float()
    x.view(torch.uint8)[0, 0] += 1
    return made


def _nudging(x):
    """By less than `torch.allclose` sees."""
    x += 1e-9
    return 2 * x, x.sum(1)


@pytest.mark.parametrize(
    ("op", "claim", "words"),
    [
        (_first_again, "alias", "batch of 8: changed by later calls"),
        (_second_kept, "alias", "changed by later calls"),
        (lambda: _out(_spoiling), "schema", "x is not defined as mutable but was mutated"),
        (lambda: _codes(_spoiling_codes), "schema", "x is not defined as mutable but was mutated"),
        (lambda: _pair(_nudging), "schema", "x is not defined as mutable but was mutated"),
        (lambda: _pair(lambda x: (x, x.sum(1))), "schema", "alias"),
        (lambda: _pair(lambda x: (x[:], x.sum(1))), "alias", "that of an input, or of the next result"),
        (lambda: _pair(fake=lambda x: (torch.empty_like(x), x.new_empty(8))), "fake", "batch of 5: .*[Ss]hape"),
        (lambda: _pair(lambda x: (2 * x, x.sum(1).double())), "fake", "float64"),
        # `len` is a plain number to torch: the batch is compiled in
        (lambda: _pair(fake=lambda x: (torch.empty_like(x), x.new_empty(len(x)))), "recompiles", "13 and 21: 5"),
    ],
)
def test_the_fault_is_seen(op, claim, words):
    status, reason, evidence = _told(f"graph.op.{claim}", op())
    assert status is Status.FAIL, reason
    assert re.search(words, evidence.summary), evidence.summary


@pytest.mark.parametrize("claim", ["fake", "compile", "recompiles"])
def test_what_cannot_be_traced_is_named_and_not_judged(claim):
    op = _untraced()
    status, _, evidence = _told(f"graph.op.{claim}", op, _out(), notes=["some::other: left out"])
    assert status is Status.PASS
    assert evidence.notes == [f"{op.name}: no fake: cannot be compiled", "some::other: left out"]
    assert op.name not in evidence.measured["operators"]
    status, reason, _ = _told(f"graph.op.{claim}", op)
    assert status is Status.NOT_SUPPORTED and f"no operator of this stack has a fake: {op.name}" in reason
    assert _told("graph.op.schema", op)[0] is Status.PASS


def test_a_stack_that_lists_none():
    status, reason, _ = _told("graph.op.schema")
    assert status is Status.NOT_SUPPORTED and "lists no operators" in reason


def test_what_is_declared_too_much_is_told():
    real = _op("(Tensor! x) -> Tensor", lambda x: 2 * x, lambda b, n: (_values(b, n),), torch.empty_like)
    status, _, evidence = _told("graph.op.schema", real)
    assert status is Status.PASS and "declared as written, and written by no call: x" in evidence.notes[0]
    assert not _told("graph.op.schema", _out())[2].notes


def test_a_negative_zero_is_no_difference_between_compiled_and_eager():
    op = _pair(lambda x: (x * -0.0, x.sum(1)))
    assert _told("graph.op.compile", op)[0] is Status.PASS


def test_what_raises_when_compiled_is_a_finding():
    def fake(x):
        raise RuntimeError("no such layer")

    for claim in ("compile", "recompiles"):
        status, _, evidence = _told(f"graph.op.{claim}", _pair(fake=fake))
        assert status is Status.FAIL and "no such layer" in evidence.findings[0].got


@pytest.mark.parametrize(
    ("fault", "op", "claim"),
    [
        ("fake_shape", _pair, "fake"),
        ("fake_dtype", _pair, "fake"),
        ("fake_stride", _pair, "fake"),
        ("fake_batch", _pair, "fake"),
        ("returns_input", _pair, "alias"),
        ("returns_buffer", _pair, "alias"),
        ("mutates_input", _pair, "schema"),
        ("mutates_input", _out, "schema"),
        ("graph_break", _out, "compile"),
        ("branching", _out, "compile"),
        ("disabled", _out, "compile"),
        ("locked", _out, "compile"),
        ("each_size", _pair, "recompiles"),
    ],
)
def test_faults_find_their_place(fault, op, claim):
    status, _, _ = _told(f"graph.op.{claim}", faults.planted(op(), getattr(faults, fault)))
    assert status is Status.FAIL


@pytest.mark.parametrize("fault", ["fake_shape", "returns_buffer", "found_at_trace"])
def test_a_fault_without_a_place_changes_nothing(fault):
    op = faults.planted(_out(), getattr(faults, fault))
    assert {_told(claim, op)[0] for claim in CLAIMS} == {Status.PASS}


def test_a_planted_operator_without_a_fake_stays_without_one():
    assert not faults.planted(_untraced(), faults.mutates_input).has_fake()


@pytest.mark.parametrize("slices", [1, 2, 3, 8])
def test_a_ring_of_buffers_is_seen_whatever_its_length(slices):
    buffers, turn = [torch.empty(8, 24) for _ in range(slices)], itertools.count()

    def ring(x):
        return buffers[next(turn) % slices][: len(x)].copy_(2 * x)

    op = _op("(Tensor x) -> Tensor", ring, lambda b, n: (_values(b, n),), torch.empty_like)
    assert _judged("graph.op.alias", Listed([op]))[0] is Status.FAIL


def test_what_raises_is_not_proved_and_hides_no_failure():
    claim, right, wrong = "graph.op.alias", _pair(), _first_again()
    status, reason = _judged(claim, Listed([right], refused=["_C::other: RuntimeError: none"]))
    assert status is Status.NOT_SUPPORTED
    assert reason == "1 operators are right, and calls of others raise: _C::other: RuntimeError: none"
    assert _judged(claim, Listed([right, wrong], refused=["_C::other: RuntimeError: none"]))[0] is Status.FAIL


def test_operators_of_a_cpu_say_nothing_of_a_gpu():
    target = msgspec.structs.replace(TARGET, capability=(9, 0))
    for listed, due in ((Listed([_pair()], device="cpu"), Status.NOT_SUPPORTED), (Listed([_pair()]), Status.PASS)):
        status, reason = _judged("graph.op.alias", listed, target)
        assert status is due, reason


def _judged(claim, listed, target=TARGET):
    context = Context(target, None, None, {"custom_ops": lambda: listed})
    status, reason, _ = evaluate(catalogue.get(claim), STACK, context)
    return status, reason
