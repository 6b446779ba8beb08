"""Faults of the call that an adapter makes on a GPU that is not there: names, dtypes, shapes."""

from __future__ import annotations

from conformance.faults.kernel import MoeFault
from conformance.stacks.protocols import MoeCall, TensorInfo


def _renamed(calls: list[MoeCall]) -> None:
    calls[-1].refused = "got an unexpected keyword argument 'swiglu_limit'"


def _scale_bytes(calls: list[MoeCall]) -> None:
    """Scales as bytes, where MXFP8 takes four at a time as int32."""
    e, rows, cols = calls[-1].tensors["fc1_expert_weights"].shape
    calls[-1].tensors["quant_scales[0]"] = TensorInfo("uint8", (e, rows, cols // 2))


def _unpadded(calls: list[MoeCall]) -> None:
    """GEMM1's weights with a scale group fewer in each half."""
    info = calls[-1].tensors["fc1_expert_weights"]
    e, rows, cols = info.shape
    calls[-1].tensors["fc1_expert_weights"] = TensorInfo(info.dtype, (e, rows - 64, cols))


def _other_scheme(calls: list[MoeCall]) -> None:
    values = calls[-1].values
    one, other = "use_w4_group_scaling", "use_mxfp8_act_scaling"
    values[one], values[other] = values.get(other, "False"), values.get(one, "False")


renamed = MoeFault(call=_renamed)
scale_bytes = MoeFault(call=_scale_bytes)
unpadded = MoeFault(call=_unpadded)
other_scheme = MoeFault(call=_other_scheme)
