"""What the reference stack would call on GPUs for NVFP4 and MXFP8: FlashInfer's and vLLM's calls written down by hand,
so that checks of calls have something that is right to look at, and faults something to spoil."""

from __future__ import annotations

from conformance.errors import NotSupported
from conformance.stacks.protocols import MoeCall, TensorInfo
from conformance.stacks.quant_calls_protocol import QuantCallRequest


def calls(request: QuantCallRequest) -> dict[str, list[MoeCall]]:
    """For the request's own default sizes, which all shapes here are of."""
    major, minor = request.capability
    if major not in (10, 12):
        raise NotSupported(f"no NVFP4 product is known for capability {major}.{minor}")
    told = {
        "linear, FlashInfer": [_quantise(), _mm_fp4()],
        "linear, vLLM": [_vllm_quantise(), _vllm_mm()],
        "linear, vLLM through FlashInfer": [_vllm_quantise(), _mm_fp4()],
        "MoE, vLLM": _moe(),
        "MXFP8, FlashInfer": [_call("mxfp8_quantize", {"is_sf_swizzled_layout": "True"}, input=("bfloat16", 5, 384))],
        "scale tiles, FlashInfer": [_call("block_scale_interleave", unswizzled_sf=("uint8", 3, 224, 24))],
    }
    if major == 12:
        return told | {"groups, FlashInfer": [_groupwise()]}
    return told | {"batched groups, FlashInfer CuTe DSL": [_masked()]}


def _call(function: str, values: dict[str, str] | None = None, **tensors: tuple[str | int, ...]) -> MoeCall:
    """A tensor whose dtype ends in `'` is not contiguous."""
    found = {}
    for name, (dtype, *shape) in tensors.items():
        plain = str(dtype).rstrip("'")
        found[name] = TensorInfo(plain, tuple(int(n) for n in shape), plain == dtype)
    return MoeCall(function, found, values or {})


def _quantise() -> MoeCall:
    values = {"sfLayout": "SfLayout.layout_128x4", "do_shuffle": "False"}
    return _call("nvfp4_quantize", values, a=("bfloat16", 5, 384), a_global_sf=("float32", 1))


def _vllm_quantise() -> MoeCall:
    values = {"is_sf_swizzled_layout": "True"}
    return _call("scaled_fp4_quant", values, input=("bfloat16", 5, 384), input_global_scale=("float32",))


def _mm_fp4() -> MoeCall:
    return _call(
        "mm_fp4",
        {"block_size": "16", "use_nvfp4": "True", "use_8x4_sf_layout": "False", "out_dtype": "bfloat16"},
        a=("uint8", 5, 192),
        b=("uint8'", 192, 224),
        a_descale=("uint8", 128, 24),
        b_descale=("uint8'", 24, 256),
        alpha=("float32", 1),
    )


def _vllm_mm() -> MoeCall:
    return _call(
        "cutlass_scaled_fp4_mm",
        {"out_dtype": "bfloat16"},
        a=("uint8", 5, 192),
        b=("uint8", 224, 192),
        block_scale_a=("float8_e4m3fn", 128, 24),
        block_scale_b=("float8_e4m3fn", 256, 24),
        alpha=("float32",),
    )


def _groupwise() -> MoeCall:
    return _call(
        "group_gemm_nvfp4_nt_groupwise",
        a=("uint8", 12, 192),
        b=("uint8", 3, 224, 192),
        a_scale=("uint8", 384, 24),
        b_scale=("uint8", 3, 256, 24),
        m_indptr=("int32", 4),
        alpha=("float32", 3),
        out=("bfloat16", 12, 224),
    )


def _masked() -> MoeCall:
    call = _call(
        "grouped_gemm_nt_masked",
        {"ab_dtype": "float4_e2m1fn", "sf_dtype": "float8_e4m3fn", "c_dtype": "bfloat16", "sf_vec_size": "16"},
        out=("bfloat16'", 128, 224, 3),
        masked_m=("int32", 3),
        alpha=("float32", 1, 1, 3),
    )
    for name, rows, tiles in (("lhs", 128, 1), ("rhs", 224, 2)):
        call.tensors[f"{name}[0]"] = TensorInfo("uint8", (rows, 192, 3), False)
        call.tensors[f"{name}[1]"] = TensorInfo("float8_e4m3fn", (32, 4, tiles, 4, 6, 3), False)
    return call


def _moe() -> list[MoeCall]:
    starts: dict[str, tuple[str | int, ...]] = {"expert_offsets": ("int32", 4), "blockscale_offsets": ("int32", 4)}
    counting = _call(
        "get_cutlass_moe_mm_data",
        {"num_experts": "3", "n": "256", "k": "384"},
        topk_ids=("int32", 5, 2),
        problem_sizes1=("int32", 3, 3),
        problem_sizes2=("int32", 3, 3),
        input_permutation=("int32", 10),
        output_permutation=("int32", 10),
        **starts,
    )

    def quantise(name: str, columns: int) -> MoeCall:
        scale = ("float32", 3)
        given = ("bfloat16", 10, columns)
        return _call(name, {"topk": "2"}, input_tensor=given, input_global_scale=scale, **starts)

    def multiply(n: int, k: int) -> MoeCall:
        return _call(
            "cutlass_fp4_moe_mm",
            out_tensors=("bfloat16", 10, n),
            a_tensors=("uint8", 10, k // 2),
            b_tensors=("uint8", 3, n, k // 2),
            a_scales=("float8_e4m3fn", 4096, k // 16),
            b_scales=("float8_e4m3fn", 3, n, k // 16),
            alphas=("float32", 3),
            problem_sizes=("int32", 3, 3),
            expert_offsets=("int32", 3),
            sf_offsets=("int32", 3),
        )

    return [
        counting,
        quantise("scaled_fp4_experts_quant", 384),
        multiply(512, 384),
        quantise("silu_and_mul_scaled_fp4_experts_quant", 512),
        multiply(384, 256),
    ]
