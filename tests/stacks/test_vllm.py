"""A real vLLM, named by CONFORMANCE_VLLM_PYTHON (and a checkout by CONFORMANCE_VLLM_SOURCE), on this machine's CPU.

What any version must do is asserted for any; numbers of one version, only where that version is found.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conformance import geometry
from conformance.errors import NotSupported, StackCrashed, StackRefused
from conformance.stacks.protocols import (
    SHARDS,
    Axis,
    ExpertsRequest,
    PlanOutcome,
    PlanRequest,
    StackInfo,
)
from conformance.stacks.vllm.loader import VllmExperts
from conformance.stacks.vllm.stack import VllmStack
from tests.stacks.cuts import Cut, cut

PYTHON = os.environ.get("CONFORMANCE_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="CONFORMANCE_VLLM_PYTHON names no interpreter with vllm")

FLASH = geometry.load("deepseek-v4-flash")
VETTED = {"attention": "FLASHINFER_MLA_SPARSE_DSV4", "moe": "flashinfer_cutlass"}
REPAIR = {
    "w2_weight": {"b12x_mxfp4_w2_scale_group_size": 2, "b12x_mxfp4_w2_logical_k": 704},
    "w2_weight_scale": {"b12x_mxfp4_w2_scale_group_size": 32, "b12x_mxfp4_w2_logical_k": 704},
}


def plan(stack: VllmStack, tp: int, capability: tuple[int, int] | None = (12, 0), **changes: Any) -> PlanOutcome:
    return stack.planner().plan(PlanRequest(FLASH, tp, capability, **(VETTED | changes)))


def experts(stack: VllmStack, tp: int, rank: int, backend: str = "flashinfer_cutlass", **changes: Any) -> VllmExperts:
    fields: dict[str, Any] = {"experts": 2, "capability": (12, 0), "attention": VETTED["attention"]}
    return stack.loader().open_experts(ExpertsRequest(FLASH, tp, rank, backend, **(fields | changes)))


def cuts(stack: VllmStack, parameter: str, tp: int = 3, **how: Any) -> list[Cut]:
    """One cut a rank: the shard of the parameter's last checkpoint tensor."""
    found = []
    for rank in range(tp):
        layer = experts(stack, tp, rank, **how)
        found.append(cut(layer, FLASH, parameter, SHARDS[parameter][-1], expert=1))
        layer.close()
    return found


def test_the_sizes_that_vllm_captures_are_its_own() -> None:
    """`--nightly` captures them; no GPU is needed to ask."""
    asked = "from conformance.stacks.vllm.worker.graphs import captured_sizes; print('sizes', captured_sizes({}))"
    path = [os.environ.get("CONFORMANCE_VLLM_SOURCE"), str(Path(__file__).parents[2])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    told = subprocess.run([PYTHON, "-c", asked], env=environment, capture_output=True, text=True, check=True).stdout
    sizes = json.loads(told[told.rindex("sizes ") + 6 :])
    assert sizes == [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]


def test_it_says_who_it_is(info: StackInfo) -> None:
    assert (info.name, info.subject) == ("vllm", "vllm")
    assert info.version
    assert Path(info.identity["file"]).name == "__init__.py"
    assert len(info.identity["sha256 model_executor/layers/fused_moe/routed_experts.py"]) == 64
    assert {"flashinfer_cutlass", "marlin", "deep_gemm", "emulation"} <= set(info.backends)
    assert any("pretended" in note for note in info.notes)


def test_tp2_is_accepted_and_its_axes_are_read_off_the_layers(stack: VllmStack) -> None:
    outcome = plan(stack, 2)
    assert (outcome.outcome, outcome.origin, outcome.forced) == ("accepted", "layers", False), outcome
    assert outcome.axes == {
        "heads": Axis(64, 64, 32),
        "groups": Axis(8, 8, 4),
        "routed": Axis(2048, 2048, 1024),
        "shared": Axis(2048, 2048, 1024),
        "vocab": Axis(129280, 129280, 64640),
    }
    assert outcome.unpadded == FLASH.unpadded


def test_unknown_names_are_not_supported(stack: VllmStack) -> None:
    with pytest.raises(NotSupported, match="no MoE backend 'flashinfer_cutlas'; nearest: flashinfer_cutlass"):
        plan(stack, 2, moe="flashinfer_cutlas")
    with pytest.raises(NotSupported, match="no attention backend 'NONSENSE'; nearest: "):
        plan(stack, 2, attention="NONSENSE")
    with pytest.raises(NotSupported, match="MXFP4 oracle named 'marln'; nearest: marlin"):
        experts(stack, 2, 0, backend="marln")


@pytest.mark.parametrize("parameter", SHARDS)
def test_tp2_loads_right(stack: VllmStack, parameter: str) -> None:
    first, second = cuts(stack, parameter, tp=2)
    rows, cols = FLASH.checkpoint_shape(parameter)
    half = (rows if parameter.startswith("w13") else cols) // 2
    assert first == Cut(0, half, half, 0, 0)
    assert second == Cut(half, 2 * half, half, 0, 0)


def test_bytes_go_in_and_come_out(stack: VllmStack) -> None:
    import torch

    layer = experts(stack, 2, 1)
    try:
        shape = layer.info.parameters["w2_weight"]
        assert (shape.rows, shape.cols, shape.dtype) == (4096, 512, "uint8")
        layer.fill("w2_weight", 0xEE)
        assert (layer.read("w2_weight", 1) == 0xEE).all()
        data = torch.arange(4096 * 512).to(torch.uint8).view(4096, 512)
        layer.write("w2_weight", 1, data)
        assert torch.equal(layer.read("w2_weight", 1), data)
        assert (layer.read("w2_weight", 0) == 0xEE).all()
        assert not layer.initial("w2_weight", 1).any()
    finally:
        layer.close()


def test_a_loader_that_raises_refuses_with_its_own_words(stack: VllmStack) -> None:
    layer = experts(stack, 2, 0)
    try:
        with pytest.raises(StackRefused, match="shard_id must be"):
            layer.load("w2_weight", "w9", 0, layer.allocate(64).view(8, 8))
    finally:
        layer.close()


def test_a_layer_whose_worker_is_gone_says_so(stack: VllmStack, info: StackInfo) -> None:
    layer = experts(stack, 2, 0)
    stack.close()
    with pytest.raises(StackCrashed, match="open the layer again"):
        layer.read("w2_weight", 0)
    layer.close()
    assert stack.info().version == info.version


@pytest.mark.usefixtures("stock")
def test_stock_refuses_tp3_and_makes_no_plan(stack: VllmStack) -> None:
    for force in (False, True):
        outcome = plan(stack, 3, force=force)
        assert (outcome.outcome, outcome.axes) == ("refused", None)
        assert "must be divisible by tensor parallel size (3)" in outcome.message
    with pytest.raises(StackRefused, match="must be divisible by tensor parallel size"):
        experts(stack, 3, 0)


@pytest.mark.usefixtures("stock")
def test_stock_forced_to_tp3_divides_and_drops_the_rest(stack: VllmStack) -> None:
    ends = {"w13_weight": 682, "w13_weight_scale": 682, "w2_weight": 341, "w2_weight_scale": 21}
    for parameter, size in ends.items():
        for rank, got in enumerate(cuts(stack, parameter, force=True)):
            assert (got.start, got.stop, got.zero) == (rank * size, (rank + 1) * size, 0)
            assert got.untouched == got.length - size


@pytest.mark.usefixtures("audited")
def test_audited_refuses_the_vetted_pair_and_would_plan_it_right(stack: VllmStack) -> None:
    outcome = plan(stack, 3)
    assert (outcome.outcome, outcome.axes) == ("refused", None)
    assert "requires the native B12X MoE" in outcome.message
    assert "refused by the virtual-TP layer's own guard" in outcome.notes
    forced = plan(stack, 3, force=True)
    assert (forced.outcome, forced.forced, forced.origin) == ("refused", True, "plan")
    assert forced.axes == {
        "heads": Axis(64, 72, 24),
        "groups": Axis(8, 9, 3),
        "routed": Axis(2048, 2112, 704),
        "shared": Axis(2048, 2304, 768),
        "vocab": Axis(129280, 129408, 43136),
    }
    assert forced.unpadded == FLASH.unpadded
    assert not any("the layers built from it" in note for note in forced.notes)


@pytest.mark.usefixtures("audited")
@pytest.mark.parametrize("capability", [(9, 0), (10, 0), None])
def test_audited_plans_nothing_on_other_platforms(stack: VllmStack, capability: tuple[int, int] | None) -> None:
    outcome = plan(stack, 3, capability)
    assert outcome.axes is None
    assert any("silent no-op" in note for note in outcome.notes)


@pytest.mark.usefixtures("audited")
def test_audited_accepts_b12x(stack: VllmStack) -> None:
    outcome = plan(stack, 3, moe="b12x", attention="B12X_MLA_SPARSE")
    assert (outcome.outcome, outcome.forced) == ("accepted", False)


@pytest.mark.usefixtures("audited")
@pytest.mark.parametrize(
    ("parameter", "how", "starts", "zeros"),
    [
        ("w13_weight", {}, [0, 704, 1408], [64, 64, 128]),
        ("w13_weight_scale", {}, [0, 704, 1408], [64, 64, 128]),
        ("w2_weight", {}, [0, 384, 768], [0, 0, 128]),
        ("w2_weight_scale", {}, [0, 24, 48], [0, 0, 8]),
        ("w2_weight", {"attributes": REPAIR}, [0, 352, 704], [32, 32, 64]),
        ("w2_weight_scale", {"attributes": REPAIR}, [0, 22, 44], [2, 2, 4]),
        ("w2_weight", {"backend": "b12x", "attention": "B12X_MLA_SPARSE"}, [0, 352, 704], [0, 0, 32]),
        ("w2_weight_scale", {"backend": "b12x", "attention": "B12X_MLA_SPARSE"}, [0, 22, 44], [0, 0, 2]),
    ],
)
def test_audited_cuts(
    stack: VllmStack, parameter: str, how: dict[str, Any], starts: list[int], zeros: list[int]
) -> None:
    found = cuts(stack, parameter, **how)
    assert [c.start for c in found] == starts
    assert [c.zero for c in found] == zeros
    assert [c.untouched for c in found] == [0, 0, 0]


@pytest.mark.usefixtures("audited")
def test_audited_details_explain_the_offsets(stack: VllmStack) -> None:
    layer = experts(stack, 3, 1, attributes=REPAIR)
    try:
        details = layer.info.details
        assert (layer.info.logical_width, layer.info.kernel_width) == (704, 768)
        assert details["virtual_tp_plan"] is True
        assert details["plan_routed_per_rank"] == 704
        assert details["attributes"]["w2_weight"]["b12x_mxfp4_w2_logical_k"] == 704
        assert details["oracle_would_choose"]["backend"] == "FLASHINFER_CUTLASS_MXFP4_MXFP8"
        assert any("plan made by force" in note for note in layer.info.notes)
    finally:
        layer.close()
