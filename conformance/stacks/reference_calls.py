"""What the reference stack would call on GPUs: FlashInfer's call and vLLM's for Marlin written down by hand, so that
checks of calls have something that is right to look at, and faults something to spoil."""

from __future__ import annotations

from conformance.errors import NotSupported
from conformance.stacks.protocols import MoeCall, MoeRequest, TensorInfo


def calls(request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int) -> list[MoeCall]:
    if capability[0] not in (9, 10, 12):
        raise NotSupported(f"no CUTLASS MXFP4 MoE is known for capability {capability[0]}.{capability[1]}")
    if request.backend == "marlin":
        return _marlin(request, tokens, slots)
    if request.backend == "flashinfer_cutedsl":
        return _nvfp4(request, capability[0], tokens, slots)
    experts = request.experts
    gate_up, down = request.weights.info("w13_weight"), request.weights.info("w2_weight")
    hidden = down.rows
    call = MoeCall("cutlass_fused_moe")
    call.tensors = {
        "token_selected_experts": TensorInfo("int32", (tokens, slots)),
        "token_final_scales": TensorInfo("float32", (tokens, slots)),
        "output": TensorInfo("bfloat16", (tokens, hidden)),
    }
    if request.limit is not None:
        call.tensors["swiglu_limit"] = TensorInfo("float32", (experts,))
    call.values = {"output_dtype": "bfloat16", "tp_size": str(request.tp), "tp_rank": str(request.rank)}
    shapes = [(experts, gate_up.rows, gate_up.cols), (experts, hidden, down.cols)]
    scales = [(e, rows, cols // 16) for e, rows, cols in shapes]
    if capability[0] == 9:
        call.values["use_w4_group_scaling"] = "True"
        call.tensors["input"] = TensorInfo("bfloat16", (tokens, hidden))
        fc1, fc2 = (TensorInfo("uint8", shape) for shape in shapes)
        held = [TensorInfo("uint8", shape) for shape in scales]
    else:
        call.values["use_mxfp8_act_scaling"] = "True"
        call.tensors["input"] = TensorInfo("float8_e4m3fn", (tokens, hidden))
        tiles = -(-tokens // 128) * -(-hidden // 128)
        call.tensors["input_sf"] = TensorInfo("uint8", (tiles * 512,))
        fc1, fc2 = (TensorInfo("int64", (e, rows, cols // 8)) for e, rows, cols in shapes)
        ones = TensorInfo("float32", (experts,))
        first, second = (TensorInfo("int32", (e, rows, cols // 4)) for e, rows, cols in scales)
        held = [first, ones, second, ones]
    call.tensors |= {"fc1_expert_weights": fc1, "fc2_expert_weights": fc2}
    call.tensors |= {f"quant_scales[{index}]": info for index, info in enumerate(held)}
    return [call]


def _nvfp4(request: MoeRequest, major: int, tokens: int, slots: int) -> list[MoeCall]:
    experts, hidden = request.experts, request.weights.info("w2_weight").rows
    shapes = [(info.rows, info.cols) for info in map(request.weights.info, ("w13_weight", "w2_weight"))]
    alpha, out = TensorInfo("float32", (experts,)), TensorInfo("bfloat16", (tokens, hidden))
    codes = TensorInfo("uint8", (tokens, hidden // 2))
    ids = {
        "token_selected_experts": TensorInfo("int32", (tokens, slots)),
        "token_final_scales": TensorInfo("float32", (tokens, slots)),
    }
    given = {"input": out, "global_scale": TensorInfo("float32", (1,))}
    quantize = MoeCall("fp4_quantize", given, {"is_sf_swizzled_layout": str(major == 12)})
    limit = request.limit
    if major == 10:
        (w1, w2) = (TensorInfo("uint8", (experts, rows, packed)) for rows, packed in shapes)
        tiles = [(32, 4, rows // 128, 4, packed // 32, experts) for rows, packed in shapes]
        s1, s2 = (TensorInfo("uint8", shape, contiguous=False) for shape in tiles)
        tensors = {"x": codes, "x_sf": TensorInfo("float8_e4m3fn", (tokens, hidden // 16, 1)), "moe_output": out}
        tensors |= {"w1_weight": w1, "w1_weight_sf": s1, "w1_alpha": alpha}
        tensors |= {"w2_weight": w2, "w2_weight_sf": s2, "w2_alpha": alpha}
        tensors |= {"fc2_input_scale": TensorInfo("float32", (1,))}
        values = {"num_experts": str(experts), "top_k": str(slots), "activation_type": "3"}
        values |= {} if limit is None else {"swiglu_limit": str(limit)}
        return [quantize, MoeCall("cute_dsl_fused_moe_nvfp4", ids | tensors, values)]
    padded = TensorInfo("uint8", ((tokens + 127) // 128 * 128, (hidden // 16 + 3) // 4 * 4))
    tensors = {"input": codes, "input_sf": padded, "output": out}
    for number, (name, (rows, packed)) in enumerate(zip(("fc1", "fc2"), shapes, strict=True)):
        tensors[f"{name}_expert_weights"] = TensorInfo("int64", (experts, rows, packed // 8))
        tensors[f"quant_scales[{3 * number}]"] = TensorInfo("float32", ())
        tensors[f"quant_scales[{3 * number + 1}]"] = TensorInfo("int32", (experts, rows, packed // 32))
        tensors[f"quant_scales[{3 * number + 2}]"] = alpha
    tensors |= {} if limit is None else {"swiglu_limit": alpha}
    values = {"output_dtype": "bfloat16", "tp_size": str(request.tp), "tp_rank": str(request.rank)}
    return [quantize, MoeCall("cutlass_fused_moe", ids | tensors, values)]


def _marlin(request: MoeRequest, tokens: int, slots: int) -> list[MoeCall]:
    gate_up, down = request.weights.info("w13_weight"), request.weights.info("w2_weight")
    bf16, matrices = "bfloat16", ((gate_up.rows, gate_up.cols), (down.rows, down.cols))
    made = []
    for n, packed in matrices:
        values = {"size_k": str(2 * packed), "size_n": str(n), "num_bits": "4"}
        repack = MoeCall("gptq_marlin_repack", {"b_q_weight": TensorInfo("int32", (packed // 4, n))}, values)
        made += [repack] * request.experts
    gemms: list[MoeCall] = []
    for (n, packed), rows in zip(matrices, (tokens, tokens * slots), strict=True):
        call = MoeCall("moe_wna16_marlin_gemm")
        call.tensors = {
            "input": TensorInfo(bf16, (rows, 2 * packed)),
            "output": TensorInfo(bf16, (tokens * slots, n)),
            "b_qweight": TensorInfo("int32", (request.experts, packed // 8, 2 * n)),
            "b_scales": TensorInfo("float8_e8m0fnu", (request.experts, packed // 16, n)),
        }
        call.values = {"size_m": str(rows), "size_n": str(n), "size_k": str(2 * packed), "use_fp32_reduce": "True"}
        call.values |= {"b_q_type": "float4_e2m1f", "top_k": str(tokens * slots // rows)}
        call.values["mul_topk_weights"] = str(len(gemms) == 1)
        gemms.append(call)
    wide, narrow = (TensorInfo(bf16, (tokens * slots, rows)) for rows in (gate_up.rows, gate_up.rows // 2))
    clamp = MoeCall("silu_and_mul_with_clamp", {"input": wide, "output": narrow}, {"clamp_limit": str(request.limit)})
    ends = {"input": TensorInfo(bf16, (tokens, slots, down.rows)), "output": TensorInfo(bf16, (tokens, down.rows))}
    return [*made, gemms[0], clamp, gemms[1], MoeCall("moe_sum", ends)]
