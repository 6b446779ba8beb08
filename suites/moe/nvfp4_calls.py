"""What FlashInfer's NVFP4 MoE is due to be handed: CuTe DSL's on SM100, CUTLASS's on SM120, `fp4_quantize` before."""

from __future__ import annotations

from conformance.result import Finding
from conformance.stacks.protocols import MoeCall, MoeRequest, TensorInfo

BACKEND, CUTE = "flashinfer_cutedsl", "cute_dsl_fused_moe_nvfp4"
_BLOCK = 16


def wrong(calls: list[MoeCall], request: MoeRequest, tokens: int, slots: int) -> list[Finding]:
    """Calls that bind, in this order, with every tensor of the dtype and shape due. Values are not computed."""
    assert request.capability is not None
    due = _due(request, request.capability[0] == 12, tokens, slots)
    at = f"rank {request.rank}"
    names = [call.function for call in calls]
    if names != list(due):
        return [Finding(at, ", then ".join(due), ", then ".join(names) or "no call", rank=request.rank)]
    findings = []
    for call in calls:
        tensors, values = due[call.function]
        if call.refused:
            findings.append(Finding(f"{at}, {call.function}", "a call that binds", call.refused, rank=request.rank))
            continue
        for name, want in tensors.items():
            got = call.tensors.get(name)
            if got != want:
                where, found = f"{at}, {call.function}, {name}", _words(got) if got else "nothing"
                findings.append(Finding(where, _words(want), found, rank=request.rank))
        for name, value in values.items():
            told = call.values.get(name, "nothing")
            if told != value:
                findings.append(Finding(f"{at}, {call.function}, {name}", value, told, rank=request.rank))
    return findings


_Due = dict[str, tuple[dict[str, TensorInfo], dict[str, str]]]


def _due(request: MoeRequest, cutlass: bool, tokens: int, slots: int) -> _Due:
    w13, w2 = request.weights.info("w13_weight"), request.weights.info("w2_weight")
    e, h, rows, width = request.experts, w2.rows, w13.rows, 2 * w2.cols
    each = TensorInfo("float32", (e,))
    quantize = {"input": TensorInfo("bfloat16", (tokens, h)), "global_scale": TensorInfo("float32", (1,))}
    routed = {
        "token_selected_experts": TensorInfo("int32", (tokens, slots)),
        "token_final_scales": TensorInfo("float32", (tokens, slots)),
    }
    codes, out = TensorInfo("uint8", (tokens, h // 2)), TensorInfo("bfloat16", (tokens, h))
    first = {"fp4_quantize": (quantize, {"is_sf_swizzled_layout": str(cutlass)})}
    if not cutlass:
        tensors = routed | {
            "x": codes,
            "x_sf": TensorInfo("float8_e4m3fn", (tokens, h // _BLOCK, 1)),
            "w1_weight": TensorInfo("uint8", (e, rows, h // 2)),
            "w1_weight_sf": _mma(e, rows, h),
            "w1_alpha": each,
            "fc2_input_scale": TensorInfo("float32", (1,)),
            "w2_weight": TensorInfo("uint8", (e, h, width // 2)),
            "w2_weight_sf": _mma(e, h, width),
            "w2_alpha": each,
            "moe_output": out,
        }
        values = {"num_experts": str(e), "top_k": str(slots), "activation_type": "3"}
        if request.limit is not None:
            values["swiglu_limit"] = str(request.limit)
        return first | {CUTE: (tensors, values)}
    tiles = TensorInfo("uint8", (-(-tokens // 128) * 128, -(-h // 64) * 4))
    tensors = routed | {
        "input": codes,
        "input_sf": tiles,
        "fc1_expert_weights": TensorInfo("int64", (e, rows, h // 16)),
        "fc2_expert_weights": TensorInfo("int64", (e, h, width // 16)),
        "quant_scales[0]": TensorInfo("float32", ()),
        "quant_scales[1]": TensorInfo("int32", (e, rows, h // _BLOCK // 4)),
        "quant_scales[2]": each,
        "quant_scales[3]": TensorInfo("float32", ()),
        "quant_scales[4]": TensorInfo("int32", (e, h, width // _BLOCK // 4)),
        "quant_scales[5]": each,
        "output": out,
    }
    if request.limit is not None:
        tensors["swiglu_limit"] = each
    values = {"output_dtype": "bfloat16", "tp_size": str(request.tp), "tp_rank": str(request.rank)}
    return first | {"cutlass_fused_moe": (tensors, values)}


def _mma(experts: int, rows: int, columns: int) -> TensorInfo:
    """A view of tiles of 128 rows by 4 scales: (32, 4, row tiles, 4, column tiles, experts)."""
    return TensorInfo("uint8", (32, 4, rows // 128, 4, columns // _BLOCK // 4, experts), contiguous=False)


def _words(info: TensorInfo) -> str:
    return f"{info.dtype} {list(info.shape)}" + ("" if info.contiguous else ", not contiguous")
