"""A real vLLM's post-load conversion, its call of the kernel and its choice of kernels, on a CPU.

CONFORMANCE_VLLM_PYTHON names the interpreter (and CONFORMANCE_VLLM_SOURCE a checkout); FlashInfer must be beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conformance import geometry
from conformance.errors import NotSupported, StackCrashed
from conformance.stacks.prepare_protocol import Form, PrepareRequest
from conformance.stacks.protocols import StackOptions, TensorInfo
from conformance.stacks.selection_protocol import Choice, SelectionRequest
from conformance.stacks.vllm import open_stack
from conformance.stacks.vllm.preparation import VllmPrepared
from conformance.stacks.vllm.stack import VllmStack
from references import prepared, prepared_sm90

PYTHON = os.environ.get("CONFORMANCE_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="CONFORMANCE_VLLM_PYTHON names no interpreter with vllm")

FLASH = geometry.load("deepseek-v4-flash")
CAPABILITIES = ((9, 0), (10, 0), (10, 3), (12, 0), (12, 1))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmStack]:
    folder = str(tmp_path_factory.mktemp("run"))
    opened = open_stack(StackOptions(PYTHON, os.environ.get("CONFORMANCE_VLLM_SOURCE"), folder))
    yield opened
    opened.close()


def layer(stack: VllmStack, capability: tuple[int, int] = (12, 0), experts: int = 2) -> VllmPrepared:
    request = PrepareRequest(FLASH, 3, 2, "flashinfer_cutlass", capability, experts, 704)
    return stack.preparation().open(request)


def loaded(made: VllmPrepared, experts: int = 2) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return {
        name: torch.randint(0, 256, (experts, p.rows, p.cols), dtype=torch.uint8, generator=rng)
        for name, p in made.info.loaded.items()
    }


@pytest.fixture(scope="module")
def flashinfer(stack: VllmStack) -> None:
    made = layer(stack)
    try:
        made.convert(loaded(made))
    except NotSupported as lacking:
        pytest.skip(str(lacking))
    finally:
        made.close()


@pytest.mark.parametrize("capability", [(10, 0), (10, 3), (12, 0), (12, 1)])
@pytest.mark.usefixtures("flashinfer")
def test_conversion_is_the_recipes(stack, capability):
    made = layer(stack, capability)
    assert made.info.kernel == "FLASHINFER_CUTLASS_MXFP4_MXFP8"
    assert made.info.loaded["w2_weight"].cols * 2 == 768
    given = loaded(made)
    done = made.convert(given)
    for expert in range(2):
        for name, want in given.items():
            due = want[expert].roll(len(want[expert]) // 2, 0) if name.startswith("w13") else want[expert]
            due = prepared.interleaved(due) if name.endswith("_scale") else due.flatten()
            assert torch.equal(done[name].data[expert], due), (name, expert)
            assert done[name].form == Form(tuple(want.shape), "uint8")
    again = made.convert(given)
    assert torch.equal(
        again["w13_weight_scale"].data[0], prepared.interleaved(given["w13_weight_scale"][0].roll(768, 0))
    )
    made.close()


@pytest.mark.usefixtures("flashinfer")
def test_sm90s_conversion_is_its_recipes(stack):
    made = layer(stack, (9, 0))
    assert made.info.scheme == "bf16"
    assert "compiled for the host" in made.info.helpers
    given = loaded(made)
    done = made.convert(given)
    for expert in range(2):
        for name, want in given.items():
            due = want[expert].roll(len(want[expert]) // 2, 0) if name.startswith("w13") else want[expert]
            due = prepared_sm90.folded(due) if name.endswith("_scale") else prepared_sm90.interleaved(due)
            assert torch.equal(done[name].data[expert], due.flatten()), (name, expert)
            assert done[name].form == Form((2, *due.shape), "uint8")
    call = made.call(3, 2)
    assert not call.refused
    assert call.values["use_w4_group_scaling"] == "True"
    again = made.convert(given)  # the recorded call leaves nothing behind
    assert torch.equal(again["w2_weight"].data[1], prepared_sm90.interleaved(given["w2_weight"][1]).flatten())
    made.close()


@pytest.mark.usefixtures("flashinfer")
def test_the_call(stack):
    made = layer(stack, experts=8)
    call = made.call(3, 6)
    assert not call.refused
    assert call.tensors["fc1_expert_weights"] == TensorInfo("int64", (8, 1536, 256))
    assert call.tensors["fc2_expert_weights"] == TensorInfo("int64", (8, 4096, 48))
    assert call.tensors["token_selected_experts"] == TensorInfo("int32", (3, 6))
    assert (call.values["tp_size"], call.values["tp_rank"]) == ("3", "2")
    made.close()


def test_a_backend_without_a_recipe(stack):
    request = PrepareRequest(FLASH, 3, 0, "marlin", (12, 0), 2, 704)
    with pytest.raises(NotSupported, match="no recipe for the layout of MARLIN"):
        stack.preparation().open(request)


def test_what_is_chosen(stack):
    choices = stack.selection().choices(SelectionRequest(FLASH, 3, 704, CAPABILITIES))
    by_name: dict[tuple[tuple[int, int], str], Choice] = {(c.capability, c.asked): c for c in choices}
    for capability in CAPABILITIES:
        asked = by_name[capability, "flashinfer_cutlass"]
        assert asked.family == "flashinfer_cutlass"
        assert asked.scheme == ("bf16" if capability == (9, 0) else "mxfp8")
        left_alone = by_name[capability, "auto"]
        assert left_alone.lacking or left_alone.family not in ("", "flashinfer_cutlass"), "it is never chosen by itself"


def test_a_layer_does_not_outlive_its_worker(stack, tmp_path: Path):
    other = open_stack(StackOptions(PYTHON, os.environ.get("CONFORMANCE_VLLM_SOURCE"), str(tmp_path)))
    made = layer(other)
    other.close()
    with pytest.raises(StackCrashed, match="open the layer again"):
        made.convert(loaded(made))
    made.close()


def test_experts_with_biases_are_chosen_for_as_such(stack):
    """gpt-oss: TP4 gives 736 channels; CUTLASS on 12.0 wants MXFP8 asked for by name."""
    choices = stack.selection().choices(SelectionRequest(geometry.load("gpt-oss-120b"), 4, 736, ((9, 0), (12, 0))))
    by_name: dict[tuple[tuple[int, int], str], Choice] = {(c.capability, c.asked): c for c in choices}
    assert by_name[(12, 0), "flashinfer_cutlass"].refused
    assert by_name[(12, 0), "flashinfer_cutlass_afp8"].scheme == "mxfp8"
    assert by_name[(9, 0), "flashinfer_cutlass"].scheme == "bf16"
