"""Calls bound to an installed kernel library, without a GPU: here a stand-in with FlashInfer's signatures."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.errors import NotSupported, StackRefused
from conformance.gate.runner import evaluate
from conformance.provenance import loaded
from conformance.provenance.checkpoint import seeded
from conformance.result import Status
from conformance.stacks import reference_calls
from conformance.stacks.flashinfer import nvfp4
from conformance.stacks.flashinfer.stack import FlashInferStack
from conformance.stacks.protocols import MoeRequest
from conformance.target import Target

FLASH = geometry.load("deepseek-v4-flash")
TARGET = Target(FLASH, 3, "flashinfer_cutlass", None, None, (128,), (128,))
PROFILES = ("sm90", "sm100", "sm120")


def _module(known: tuple[str, ...]) -> tuple[ModuleType, ModuleType]:
    """flashinfer and flashinfer.fused_moe; the call knows the arguments `known` beside those of every version."""

    def mxfp8_quantize(input, is_sf_swizzled_layout=True, alignment=32, enable_pdl=None, backend="cuda"): ...
    def block_scale_interleave(unswizzled_sf, *, out=None): ...
    def interleave_moe_weights_for_sm90_mixed_gemm(weight, quant_type="fp4"): ...
    def interleave_moe_scales_for_sm90_mixed_gemm(scales, group_size=32): ...

    def fp4_quantize(input, global_scale=None, sf_vec_size=16, sf_use_ue8m0=False, is_sf_swizzled_layout=True): ...
    def cute_dsl_fused_moe_nvfp4(
        x, x_sf, token_selected_experts, token_final_scales, w1_weight, w1_weight_sf, w1_alpha, fc2_input_scale,
        w2_weight, w2_weight_sf, w2_alpha, num_experts, top_k, use_fused_finalize=True, moe_output=None,
        activation_type=3, swiglu_limit=1.0,
    ): ...  # fmt: skip

    always = "input token_selected_experts token_final_scales fc1_expert_weights fc2_expert_weights output_dtype"
    names = [*always.split(), "quant_scales", *(f"{name}=None" for name in known)]
    made: dict = {}
    exec(f"def cutlass_fused_moe({', '.join(names)}): raise AssertionError('nothing may run')", made)
    top, moe = ModuleType("flashinfer"), ModuleType("flashinfer.fused_moe")
    top.__version__ = "0"
    for owner, function in (
        (top, mxfp8_quantize),
        (top, block_scale_interleave),
        (top, fp4_quantize),
        (top, cute_dsl_fused_moe_nvfp4),
        (moe, interleave_moe_weights_for_sm90_mixed_gemm),
        (moe, interleave_moe_scales_for_sm90_mixed_gemm),
        (moe, made["cutlass_fused_moe"]),
    ):
        setattr(owner, function.__name__, function)
    top.fused_moe = moe
    return top, moe


ALL = (
    *("input_sf", "swiglu_alpha", "swiglu_beta", "swiglu_limit", "tp_size", "tp_rank", "output", "profile_ids"),
    *("use_w4_group_scaling", "use_mxfp8_act_scaling", "use_fused_finalize"),
)


def _install(monkeypatch, known=ALL) -> FlashInferStack:
    top, moe = _module(known)
    monkeypatch.setitem(sys.modules, "flashinfer", top)
    monkeypatch.setitem(sys.modules, "flashinfer.fused_moe", moe)
    return FlashInferStack()


def _judge(stack, profile, target=TARGET):
    context = Context(target, None, None, {"moe_calls": stack.moe_calls})
    return evaluate(catalogue.get(f"moe.call.{profile}"), stack, context)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_adapter_binds(monkeypatch, profile):
    status, reason, evidence = _judge(_install(monkeypatch), profile)
    assert (status, reason) == (Status.PASS, "")
    assert "nothing ran" in evidence.notes[0]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_library_without_the_limit(monkeypatch, profile):
    stack = _install(monkeypatch, tuple(name for name in ALL if name != "swiglu_limit"))
    status, reason, _ = _judge(stack, profile)
    assert status is Status.FAIL
    assert "unexpected keyword argument 'swiglu_limit'" in reason


def test_a_quantiser_of_another_name(monkeypatch):
    stack = _install(monkeypatch)
    monkeypatch.setattr(sys.modules["flashinfer"], "mxfp8_quantize", lambda x: None)
    status, reason, _ = _judge(stack, "sm100")
    assert status is Status.FAIL and "is_sf_swizzled_layout" in reason
    assert _judge(stack, "sm90")[0] is Status.PASS


def test_real_adapter_and_hand_written_call_agree(monkeypatch):
    stack = _install(monkeypatch)
    for capability in ((9, 0), (10, 0), (12, 0)):
        weights = loaded.due(TARGET).weights(2, seeded(1))
        request = MoeRequest(FLASH, 3, 2, "flashinfer_cutlass", capability, 2, 10.0, weights)
        made = stack.moe_calls(request, capability, 5, 2)[-1]
        (due,) = reference_calls.calls(request, capability, 5, 2)
        assert made.function == due.function and made.tensors == due.tensors
        assert due.values.items() <= made.values.items()


@pytest.mark.parametrize("capability", [(10, 0), (12, 0)])
def test_nvfp4_calls_bind_and_agree_with_those_written_by_hand(monkeypatch, capability):
    stack = _install(monkeypatch)
    weights = loaded.due(TARGET).weights(2, seeded(1))
    request = MoeRequest(FLASH, 3, 2, "flashinfer_cutedsl", capability, 2, 10.0, weights)
    for made, due in zip(
        stack.moe_calls(request, capability, 5, 2), reference_calls.calls(request, capability, 5, 2), strict=True
    ):
        assert (made.refused, made.function, made.tensors) == ("", due.function, due.tensors)
        assert due.values.items() <= made.values.items()


def test_mxfp4_scales_are_carried_to_nvfp4():
    """E4M3 times the global scale is the power of two; more than E4M3 spans is refused, and so is NaN."""
    scales = torch.arange(110, 128, dtype=torch.uint8).view(1, 1, -1)
    byte, whole = nvfp4.carried(scales)
    found = byte.view(torch.float8_e4m3fn).double() * whole.double()
    assert torch.equal(found, torch.exp2(scales.double() - 127).repeat_interleave(2, dim=2))
    assert not nvfp4.carried(torch.tensor([[[0, 127]]], dtype=torch.uint8))[0][0, 0, :2].any()
    for wrong in ([100, 127], [1, 20], [255, 250]):
        with pytest.raises(StackRefused, match="do not fit NVFP4"):
            nvfp4.carried(torch.tensor([[wrong]], dtype=torch.uint8))


def test_a_capability_without_a_kernel(monkeypatch):
    stack = _install(monkeypatch)
    weights = loaded.due(TARGET).weights(0, seeded(1))
    request = MoeRequest(FLASH, 3, 0, "flashinfer_cutlass", (8, 0), 2, 10.0, weights)
    with pytest.raises(NotSupported, match=r"8\.0 is none"):
        stack.moe_calls(request, (8, 0), 5, 2)


def test_a_stack_that_does_not_tell():
    context = Context(TARGET, None, None)
    status, reason, _ = evaluate(catalogue.get("moe.call.sm90"), FlashInferStack(), context)
    assert status is Status.NOT_SUPPORTED and "does not tell what it would call" in reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_no_kernel_runs(monkeypatch):
    from conformance.errors import StackMissing

    stack = _install(monkeypatch)
    assert "no CUDA GPU here" in stack.info().notes[0]
    with pytest.raises(StackMissing, match="need a CUDA GPU"):
        stack.moe()
