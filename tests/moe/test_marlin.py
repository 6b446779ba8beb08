"""vLLM's Marlin MoE without a GPU: the calls that are due, what is refused, and vLLM's own path with its compiled
functions noted (a real vLLM, named by CONFORMANCE_VLLM_PYTHON)."""

from __future__ import annotations

import os

import msgspec
import pytest
import torch

import hardware_profiles
from conformance import catalogue, geometry
from conformance.context import Context
from conformance.errors import NotSupported, StackRefused
from conformance.gate.runner import evaluate
from conformance.provenance import loaded
from conformance.provenance.checkpoint import seeded
from conformance.result import Status
from conformance.stacks import reference_calls
from conformance.stacks.protocols import MoeRequest, StackOptions, TensorInfo
from conformance.stacks.reference_moe import ReferenceMoe
from conformance.stacks.vllm.stack import VllmStack
from conformance.target import Target
from suites.moe import marlin_calls

FLASH = geometry.load("deepseek-v4-flash")
TARGET = Target(FLASH, 3, "marlin", None, (9, 0), (128,), (256,), tactics=False)
PYTHON, SOURCE = os.environ.get("CONFORMANCE_VLLM_PYTHON"), os.environ.get("CONFORMANCE_VLLM_SOURCE")
TOKENS, SLOTS = 5, 2


def _request(rank=1, backend="marlin", **more) -> MoeRequest:
    weights = loaded.due(TARGET).weights(rank, seeded(1))
    return MoeRequest(FLASH, 3, rank, backend, (9, 0), 2, 10.0, weights, **more)


def _due():
    return reference_calls.calls(_request(), (9, 0), TOKENS, SLOTS)


def test_rounding_of_the_layer():
    """704 to 768, hidden to 256. Source: vLLM 0.33.0, `mxfp4_round_up_hidden_size_and_intermediate_size`."""
    marlin = hardware_profiles.backends()["marlin"]
    assert (marlin.intermediate, marlin.hidden, marlin.arithmetic) == ((128,), (256,), "bf16_steps")
    assert _request().weights.info("w2_weight").cols * 2 == 768


def test_the_calls_that_are_due():
    made = _due()
    assert marlin_calls.wrong(made, _request(), TOKENS, SLOTS) == []
    gemm1, gemm2 = (call for call in made if call.function == "moe_wna16_marlin_gemm")
    assert gemm1.tensors["b_qweight"].shape == (2, 4096 // 16, 2 * 1536)
    assert gemm2.tensors["b_scales"] == TensorInfo("float8_e8m0fnu", (2, 768 // 32, 4096))
    assert (gemm1.values["mul_topk_weights"], gemm2.values["mul_topk_weights"]) == ("False", "True")


@pytest.mark.parametrize("call", range(4))
def test_a_repack_of_another_shape(call):
    made = _due()
    info = made[call].tensors["b_q_weight"]
    tensors = {"b_q_weight": TensorInfo("int32", info.shape[::-1])}
    made[call] = msgspec.structs.replace(made[call], tensors=tensors)
    (finding,) = marlin_calls.wrong(made, _request(), TOKENS, SLOTS)
    assert f"call {call}, gptq_marlin_repack, b_q_weight" in finding.where


def test_a_call_that_is_missing():
    (finding,) = marlin_calls.wrong(_due()[:-1], _request(), TOKENS, SLOTS)
    assert finding.expected.endswith("moe_sum") and not finding.got.endswith("moe_sum")


def test_its_arithmetic_rounds_the_routing_weight():
    """1 + 2^-9 is 1 in BF16: with it, a slot counts no more than with 1."""
    tiny = geometry.load("deepseek-v4-tiny")
    target = Target(tiny, 3, "marlin", None, None, (128,), (256,))
    weights = loaded.due(target).weights(0, seeded(1))
    layer = ReferenceMoe("bf16_steps").open(MoeRequest(tiny, 3, 0, "marlin", None, 4, 10.0, weights))
    x = torch.randn(4, tiny.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids, outs = torch.zeros(4, 1, dtype=torch.int32), []
    for weight in (1.0, 1 + 2.0**-9):
        out = torch.full_like(x, torch.nan)
        layer.run(x, ids, torch.full((4, 1), weight), out)
        outs.append(out)
    assert torch.equal(*outs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_no_kernel_runs():
    stack = VllmStack(StackOptions())
    with pytest.raises(NotSupported, match="need a CUDA GPU"):
        stack.moe().capabilities()
    stack.close()


@pytest.mark.parametrize(
    ("request_", "words"),
    [(_request(backend="triton"), "marlin alone; triton was asked for"), (_request(alpha=1.702), "alpha 1.702")],
)
def test_what_the_adapter_does_not_drive(request_, words):
    stack = VllmStack(StackOptions())
    with pytest.raises(NotSupported, match=words):
        stack.moe().calls(request_, (9, 0), TOKENS, SLOTS)
    stack.close()


def test_no_tactics_is_known_before_the_run():
    assert "no tactics" in catalogue.get("moe.tactics.right").not_applicable(TARGET)
    assert not catalogue.get("moe.tactics.right").not_applicable(msgspec.structs.replace(TARGET, tactics=True))


@pytest.fixture(scope="module")
def stack():
    if PYTHON is None:
        pytest.skip("CONFORMANCE_VLLM_PYTHON names no interpreter with vllm")
    made = VllmStack(StackOptions(python=PYTHON, source=SOURCE))
    yield made
    made.close()


@pytest.mark.xdist_group("vllm")
def test_vllms_own_path_calls_what_is_due(stack):
    made = stack.moe_calls(_request(), (9, 0), TOKENS, SLOTS)
    assert marlin_calls.wrong(made, _request(), TOKENS, SLOTS) == []
    status, reason, _ = evaluate(
        catalogue.get("moe.call.sm90"), stack, Context(TARGET, None, None, {"moe_calls": stack.moe_calls})
    )
    assert (status, reason) == (Status.PASS, "")


@pytest.mark.xdist_group("vllm")
def test_vllm_refuses_a_width_that_it_would_round(stack):
    narrow = Target(FLASH, 3, "marlin", None, (9, 0), (32,), (32,))
    weights = loaded.due(narrow).weights(1, seeded(1))
    request = MoeRequest(FLASH, 3, 1, "marlin", (9, 0), 2, 10.0, weights)
    with pytest.raises(StackRefused, match=r"w13_weight is \[2, 1536, 2048\], \[2, 1408, 2048\] was given"):
        stack.moe_calls(request, (9, 0), TOKENS, SLOTS)
