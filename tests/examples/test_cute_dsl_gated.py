"""The quant layer's GEMM claims on the example's adapter, with torch in the kernel's place: BF16 activations and MXFP4
weights are no part of the reference stack."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.faults.catalogue import FAULTS
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceLoader, ReferencePlanner
from conformance.target import Target

EXAMPLE = Path(__file__).parents[2] / "examples" / "cute_dsl_sm90_gemm"
CLAIMS = sorted(claim for claim in catalogue.claims() if claim.startswith("quant.gemm."))
#: At activations' scales, which this kernel has none of.
_QUANTISED = ("gemm-activation-scales", "gemm-activation-global", "gemm-activation-global-of-next", "gemm-sums-bf16")
GEMM_FAULTS = [name for name in FAULTS if name.startswith("gemm-") and name not in _QUANTISED]


@pytest.fixture(params=["nvfp4", "mxfp4"])
def stack(request, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    from cute_dsl_sm90_gemm.adapter import CuteGemm, CuteStack

    weights = request.param

    class OnTorch(CuteGemm):
        def __init__(self):
            super().__init__(None, weights)
            self._launch = lambda *tensors: multiplied(weights, *tensors)

        def capabilities(self):
            return msgspec.structs.replace(super().capabilities(), device="cpu", runs="torch in the kernel's place")

    made = CuteStack(weights)
    made.gemm = OnTorch
    return made


def multiplied(weights, x, codes, scales, global_scales, offsets, sizes, out):
    """What the kernel does, in its argument order: operands as BF16 has them, sums in FP32, one rounding."""
    from conformance.stacks.reference_quant import dequantize

    matrices = dequantize(weights, codes, scales).bfloat16().float()
    for matrix, scale, first, size in zip(matrices, global_scales, offsets.tolist(), sizes.tolist(), strict=True):
        rows = slice(first, first + size)
        out[rows] = (x[rows].float() @ matrix.T * scale).bfloat16()


def statuses(stack, opened, claims) -> dict[str, tuple[Status, str]]:
    target = Target(geometry.load("deepseek-v4-tiny"), 1, "cpu", None, None, (32,), (32,))
    context = Context(target, ReferencePlanner(), ReferenceLoader(32, 32), {"gemm": opened})
    return {claim: evaluate(catalogue.get(claim), stack, context)[:2] for claim in claims}


def test_right_arithmetic_passes_every_claim(stack):
    assert {
        claim: words for claim, (status, words) in statuses(stack, stack.gemm, CLAIMS).items() if status != "pass"
    } == {}


@pytest.mark.parametrize("fault", GEMM_FAULTS)
def test_each_fault_is_caught_here_too(stack, fault):
    planted = FAULTS[fault].quant.planted("gemm", stack.gemm)
    found = statuses(stack, planted, FAULTS[fault].claims)
    assert {status for status, _ in found.values()} == {Status.FAIL}, found


def test_without_a_gpu_no_claim_is_passed(stack, monkeypatch):
    import torch
    from cute_dsl_sm90_gemm import adapter

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(adapter, "find_spec", lambda name: object())
    real = adapter.open_nvfp4(StackOptions())
    assert {status for status, _ in statuses(real, real.gemm, CLAIMS).values()} == {Status.NOT_RUN}
