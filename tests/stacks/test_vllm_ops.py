"""vLLM's own custom operators, in its own process: silent, and a fault planted in them there is seen."""

from __future__ import annotations

import os
import re

import pytest

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.faults import ops as faults
from conformance.faults.catalogue import FAULTS
from conformance.faults.parts import planted_parts
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks import parts
from conformance.target import Target

PYTHON = os.environ.get("CONFORMANCE_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="CONFORMANCE_VLLM_PYTHON names no interpreter with vllm")

TARGET = Target(geometry.load("deepseek-v4-tiny"), 3, "flashinfer_cutlass", None, None, (128,), (128,))
#: With results of their own, written into an argument, several at a time, in Python.
KINDS = {"_C::hc_post_fused_cpu", "_C::silu_and_mul", "_C::hc_pre_fused_cpu", "vllm_ir::rms_norm"}
PACKED = "_C::convert_weight_packed"


@pytest.fixture(scope="module")
def for_cpus(stack):
    """A vLLM built for CPUs."""
    if "_C::hc_pre_fused_cpu" not in [op.name for op in stack.custom_ops()]:
        pytest.skip("this vLLM is not built for CPUs, or for older models")
    return stack


def _told(stack, claim, fault=""):
    offers = parts.of(stack)
    context = Context(TARGET, None, None, planted_parts(offers, FAULTS[fault]) if fault else offers)
    return evaluate(catalogue.get(f"graph.op.{claim}"), stack, context)


@pytest.mark.parametrize("claim", ["schema", "fake", "alias", "compile", "recompiles"])
def test_silent(for_cpus, claim):
    status, reason, evidence = _told(for_cpus, claim)
    assert (status, reason) == (Status.PASS, ""), evidence
    judged = evidence.measured["operators"].split(", ")
    assert set(judged) >= KINDS and len(judged) >= 20
    assert (PACKED in judged) == (claim in ("schema", "alias"))
    assert (f"{PACKED}: no fake: cannot be compiled" in evidence.notes) == (claim not in ("schema", "alias"))


def test_what_is_declared_too_much(for_cpus):
    """A finding, not a wish: a version that mends its schema makes this fail."""
    notes = _told(for_cpus, "schema")[2].notes
    assert [
        note
        for note in notes
        if "_C::fp8_scaled_mm_cpu: declared as written, and written by no call: mat1, mat2, scales2" in note
    ]


def test_objects_are_not_found_by_number(for_cpus):
    assert _told(for_cpus, "runners")[0] is Status.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("fault", "claim", "words"),
    [
        ("op-fake-shape", "fake", "_C::hc_post_fused_cpu, batch of 8: .*[Ss]hape"),
        ("op-fake-batch", "fake", "batch of 5: .*[Ss]hape"),
        ("op-mutates-input", "schema", "_C::silu_and_mul, batch of 8: .*not defined as mutable but was mutated"),
        ("op-returns-buffer", "alias", "_C::hc_pre_fused_cpu, batch of 8: changed by later calls"),
        ("op-returns-input", "alias", "that of an input, or of the next result"),
        ("op-graph-break", "compile", "_C::hc_post_fused_cpu, Dynamo: [12]"),
        ("op-each-size", "recompiles", "_C::hc_post_fused_cpu, batches of 3, 5, 8, 13 and 21: 5"),
    ],
)
def test_a_fault_is_seen(for_cpus, monkeypatch, fault, claim, words):
    monkeypatch.setattr("suites.graph.test_op._MOST", 999)
    status, _, evidence = _told(for_cpus, claim, fault)
    told = [f"{found.where}: {found.got}; {found.meaning}" for found in evidence.findings]
    assert status is Status.FAIL
    assert [one for one in told if re.search(words, one)], told


def test_a_fault_that_the_worker_does_not_know(for_cpus):
    with pytest.raises(NotSupported, match="in its own process"):
        faults.planted(for_cpus.custom_ops()[0], faults.OpFault(fake=lambda made: made))
