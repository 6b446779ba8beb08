"""The quant layer's claims on stacks of the tests' own: deviations by name, a CPU that is no evidence for a GPU, and
what is not offered."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.faults.catalogue import FAULTS
from conformance.faults.parts import planted_parts
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks.parts import of as offered
from conformance.stacks.protocols import StackOptions
from conformance.stacks.quant_protocol import QuantCapabilities
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target

_STACK = ReferenceStack(StackOptions())


def _target(capability=None):
    return Target(geometry.load("deepseek-v4-tiny"), 3, "cpu", None, capability, (32,), (32,))


def _judged(claim, fault=None, stack=_STACK, capability=None, **parts):
    opened = offered(stack) | parts
    if fault:
        opened = planted_parts(opened, FAULTS[fault])
    context = Context(_target(capability), None, None, opened)
    return evaluate(catalogue.get(f"quant.{claim}"), stack, context)


@pytest.mark.parametrize(
    ("claim", "fault", "names"),
    [
        ("standard.e2m1", "e2m1-ties-down", ["e2m1-ties-down", "e2m1-inf-not-saturated", "e2m1-large-not-saturated"]),
        ("standard.e2m1", "e2m1-ties-away", ["e2m1-ties-up"]),
        ("standard.e8m0", "e8m0-zero", ["e8m0-zero-decoded-as-0"]),
        ("standard.e8m0", "e8m0-inf", ["e8m0-nan-decoded-as-inf"]),
        ("standard.blocks", "mxfp4-scale-trunc", ["mxfp4-amax-cut"]),
        ("standard.blocks", "nvfp4-by-a-tiny-number", ["nvfp4-code-under-zero-scale"]),
    ],
)
def test_deviations_have_names(claim, fault, names):
    status, reason, evidence = _judged(claim, fault)
    assert (status, evidence.measured) == (Status.FAIL, names)
    assert all(name in reason for name in names)


@pytest.mark.parametrize("claim", ["e2m1.encode", "nvfp4.ties", "gemm.elements", "linear.dual", "swiglu.clamp"])
def test_a_cpu_is_no_evidence_for_a_gpu(claim):
    other = SimpleNamespace(
        name="other", **{part: getattr(_STACK, part) for part in ("quantizer", "gemm", "swiglu", "linear")}
    )
    status, reason, _ = _judged(claim, stack=other, capability=(12, 0))
    assert status is Status.NOT_SUPPORTED and "--profile cpu" in reason
    assert _judged(claim, stack=other)[0] is Status.PASS


def test_what_is_not_offered_is_not_supported():
    little = SimpleNamespace(capabilities=lambda: QuantCapabilities(frozenset(["e2m1.decode"]), "little"))
    status, reason, _ = _judged("nvfp4.ties", quantizer=lambda: little)
    assert status is Status.NOT_SUPPORTED and "offers no nvfp4.quantize" in reason
    status, reason, _ = _judged("gemm.dense", stack=SimpleNamespace(name="bare"))
    assert status is Status.NOT_SUPPORTED and "no `gemm()`" in reason


@pytest.mark.parametrize(
    ("claim", "fault", "words"),
    [
        (
            "layout.interleave",
            "interleave-halved",
            "granularity 8, 1 x 8 rows of gate: row in column [0, 4, 0]: 8, 4 due",
        ),
        ("nvfp4.zero", "nvfp4-amax-clamped", "global scale 2^-40: scale byte of zeros"),
        ("nvfp4.underflow", "nvfp4-by-a-tiny-number", "global scale 2^-30: magnitude"),
        ("nvfp4.rows", "nvfp4-nan-in-padding", "nan in rows behind: scale byte [32, 0]: 0x7f"),
        ("gemm.shapes", "gemm-first-shape", "N 264, K 192"),
    ],
)
def test_a_failure_says_where(claim, fault, words):
    status, reason, _ = _judged(claim, fault)
    assert status is Status.FAIL and words in reason, reason


def test_a_quantiser_of_nothing_passes_nothing():
    """Zeros for everything: no claim may be satisfied by silence."""

    class Mute:
        def capabilities(self):
            return _STACK.quantizer().capabilities()

        def __getattr__(self, name):
            def call(*arguments):
                first = next(a for a in arguments if isinstance(a, torch.Tensor))
                return torch.zeros_like(first)

            return call

    for claim in catalogue.claims().values():
        if claim.layer == "quant" and claim.group.removeprefix("quant.") in ("codes", "layout"):
            assert _judged(claim.id.removeprefix("quant."), quantizer=Mute)[0] is not Status.PASS, claim.id
