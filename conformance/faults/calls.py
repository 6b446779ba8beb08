"""Faults of the call that an adapter makes on a GPU that is not there: names, dtypes, shapes."""

from __future__ import annotations

from conformance.faults.kernel import MoeFault
from conformance.stacks.protocols import MoeCall, TensorInfo


def _renamed(calls: list[MoeCall]) -> None:
    calls[-1].refused = "got an unexpected keyword argument 'swiglu_limit'"


def _scale_bytes(calls: list[MoeCall]) -> None:
    """Scales as bytes, where MXFP8 takes four at a time as int32, and Marlin E8M0."""
    if (gemm := _marlin(calls)) is not None:
        gemm.tensors["b_scales"] = TensorInfo("uint8", gemm.tensors["b_scales"].shape)
        return
    e, rows, cols = calls[-1].tensors["fc1_expert_weights"].shape
    calls[-1].tensors["quant_scales[0]"] = TensorInfo("uint8", (e, rows, cols // 2))


def _unpadded(calls: list[MoeCall]) -> None:
    """GEMM1's weights with a scale group fewer in each half."""
    if (gemm := _marlin(calls)) is not None:
        e, tiles, columns = gemm.tensors["b_qweight"].shape
        gemm.tensors["b_qweight"] = TensorInfo("int32", (e, tiles, columns - 128))
        return
    info = calls[-1].tensors["fc1_expert_weights"]
    e, rows, cols = info.shape
    calls[-1].tensors["fc1_expert_weights"] = TensorInfo(info.dtype, (e, rows - 64, cols))


def _marlin(calls: list[MoeCall]) -> MoeCall | None:
    """GEMM1's call of vLLM's Marlin, if it is among them."""
    return next((call for call in calls if call.function == "moe_wna16_marlin_gemm"), None)


def _other_scheme(calls: list[MoeCall]) -> None:
    """Marlin has none to confuse: there it is the type of the weights."""
    if (gemm := _marlin(calls)) is not None:
        gemm.values["b_q_type"] = "uint4b8"
        return
    values = calls[-1].values
    one, other = "use_w4_group_scaling", "use_mxfp8_act_scaling"
    values[one], values[other] = values.get(other, "False"), values.get(one, "False")


def _one_alpha(calls: list[MoeCall]) -> None:
    """One global scale for all experts' gate and up, where each expert has its own."""
    for name in ("w1_alpha", "quant_scales[2]"):
        if name in calls[-1].tensors:
            calls[-1].tensors[name] = TensorInfo("float32", (1,))


one_alpha = MoeFault(call=_one_alpha)
renamed = MoeFault(call=_renamed)
scale_bytes = MoeFault(call=_scale_bytes)
unpadded = MoeFault(call=_unpadded)
other_scheme = MoeFault(call=_other_scheme)
