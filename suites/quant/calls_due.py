"""Which calls are due on SM100 and SM120 for what is quantised to NVFP4 and MXFP8, with dtypes and shapes.

Source: signatures and docstrings of FlashInfer 0.7.2.post1 and vLLM 0.33.0, and their kernels' own checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from conformance.stacks.quant_calls_protocol import QuantCallRequest

#: (dtype, shape[, contiguous]); in a shape -1 is any length. () and (1,) are alike.
Tensors = dict[str, tuple[str, tuple[int, ...], bool]]


class Due(NamedTuple):
    function: str
    tensors: Tensors
    values: dict[str, str]


class _Path(NamedTuple):
    """`kind`: `linear`, `grouped` or a step. `majors`: capabilities that have it."""

    kind: str
    majors: tuple[int, ...]
    calls: Callable[[QuantCallRequest], list[Due]]


def _t(dtype: str, *shape: int, flat: bool = True) -> tuple[str, tuple[int, ...], bool]:
    return dtype, shape, flat


def _rows(n: int) -> int:
    return -(-n // 128) * 128


def _columns(k: int) -> int:
    """Block scales of K elements, in whole tiles of four."""
    return -(-k // 64) * 4


def _quantise(r: QuantCallRequest) -> Due:
    tensors = {"a": _t("bfloat16", r.tokens, r.k), "a_global_sf": _t("float32", 1)}
    return Due("nvfp4_quantize", tensors, {"sfLayout": "SfLayout.layout_128x4", "do_shuffle": "False"})


def _vllm_quantise(r: QuantCallRequest) -> Due:
    tensors = {"input": _t("bfloat16", r.tokens, r.k), "input_global_scale": _t("float32", 1)}
    return Due("scaled_fp4_quant", tensors, {"is_sf_swizzled_layout": "True"})


def _mm_fp4(r: QuantCallRequest) -> Due:
    tensors = {
        "a": _t("uint8", r.tokens, r.k // 2),
        "b": _t("uint8", r.k // 2, r.n, flat=False),
        "a_descale": _t("uint8", _rows(r.tokens), _columns(r.k)),
        "b_descale": _t("uint8", _columns(r.k), _rows(r.n), flat=False),
        "alpha": _t("float32", 1),
    }
    values = {"block_size": "16", "use_nvfp4": "True", "use_8x4_sf_layout": "False", "out_dtype": "bfloat16"}
    return Due("mm_fp4", tensors, values)


def _vllm_mm(r: QuantCallRequest) -> Due:
    tensors = {
        "a": _t("uint8", r.tokens, r.k // 2),
        "b": _t("uint8", r.n, r.k // 2),
        "block_scale_a": _t("float8_e4m3fn", _rows(r.tokens), _columns(r.k)),
        "block_scale_b": _t("float8_e4m3fn", _rows(r.n), _columns(r.k)),
        "alpha": _t("float32", 1),
    }
    return Due("cutlass_scaled_fp4_mm", tensors, {"out_dtype": "bfloat16"})


def _groupwise(r: QuantCallRequest) -> list[Due]:
    """Group i's scales begin at row (m_i + 127 i) // 128 * 128, m_i its first row."""
    rows, e = sum(r.sizes), r.experts
    tensors = {
        "a": _t("uint8", rows, r.k // 2),
        "b": _t("uint8", e, r.n, r.k // 2),
        "a_scale": _t("uint8", (rows + 127 * e) // 128 * 128, _columns(r.k)),
        "b_scale": _t("uint8", e, _rows(r.n), _columns(r.k)),
        "m_indptr": _t("int32", e + 1),
        "alpha": _t("float32", e),
        "out": _t("bfloat16", rows, r.n),
    }
    return [Due("group_gemm_nvfp4_nt_groupwise", tensors, {})]


_MASKED = {"ab_dtype": "float4_e2m1fn", "sf_dtype": "float8_e4m3fn", "c_dtype": "bfloat16", "sf_vec_size": "16"}


def _tiles(rows: int, k: int, e: int) -> tuple[str, tuple[int, ...], bool]:
    return _t("float8_e4m3fn", 32, 4, _rows(rows) // 128, 4, _columns(k) // 4, e, flat=False)


def _masked(r: QuantCallRequest, rows: int, n: int, k: int) -> Due:
    e = r.experts
    tensors = {
        "lhs[0]": _t("uint8", rows, k // 2, e, flat=False),
        "lhs[1]": _tiles(rows, k, e),
        "rhs[0]": _t("uint8", n, k // 2, e, flat=False),
        "out": _t("bfloat16", rows, n, e, flat=False),
        "masked_m": _t("int32", e),
        "alpha": _t("float32", 1, 1, e),
    }
    return Due("grouped_gemm_nt_masked", tensors, _MASKED)


def _batched(r: QuantCallRequest) -> list[Due]:
    due = _masked(r, _rows(max(r.sizes)), r.n, r.k)
    return [due._replace(tensors=due.tensors | {"rhs[1]": _tiles(r.n, r.k, r.experts)})]


def _batched_moe(r: QuantCallRequest) -> list[Due]:
    e, m, inner = r.experts, max(r.sizes), r.intermediate
    scale, mask = _t("float32", e), _t("int32", e)
    first = {"a": _t("bfloat16", e, m, r.k), "mask": mask, "a_global_sf": scale}
    return [
        Due("scaled_fp4_grouped_quantize", first, {}),
        _masked(r, m, 2 * inner, r.k),
        Due(
            "silu_and_mul_scaled_nvfp4_experts_quantize",
            {"a": _t("bfloat16", e, m, 2 * inner), "mask": mask, "a_global_sf": scale},
            {},
        ),
        _masked(r, m, r.k, inner),
    ]


def _cutlass_moe(r: QuantCallRequest) -> list[Due]:
    e, rows, inner = r.experts, r.tokens * r.slots, r.intermediate
    starts = {"expert_offsets": _t("int32", e + 1), "blockscale_offsets": _t("int32", e + 1)}
    counting = {
        "topk_ids": _t("int32", r.tokens, r.slots),
        "problem_sizes1": _t("int32", e, 3),
        "problem_sizes2": _t("int32", e, 3),
        "input_permutation": _t("int32", rows),
        "output_permutation": _t("int32", rows),
    }

    def quantise(name: str, columns: int) -> Due:
        tensors = {"input_tensor": _t("bfloat16", rows, columns), "input_global_scale": _t("float32", e)}
        return Due(name, tensors | starts, {"topk": str(r.slots)})

    def multiply(n: int, k: int) -> Due:
        tensors = {
            "out_tensors": _t("bfloat16", rows, n),
            "a_tensors": _t("uint8", rows, k // 2),
            "b_tensors": _t("uint8", e, n, k // 2),
            "a_scales": _t("float8_e4m3fn", -1, _columns(k)),
            "b_scales": _t("float8_e4m3fn", e, _rows(n), _columns(k)),
            "alphas": _t("float32", e),
            "problem_sizes": _t("int32", e, 3),
            "expert_offsets": _t("int32", e),
            "sf_offsets": _t("int32", e),
        }
        return Due("cutlass_fp4_moe_mm", tensors, {})

    sizes = {"num_experts": str(e), "n": str(inner), "k": str(r.k)}
    return [
        Due("get_cutlass_moe_mm_data", counting | starts, sizes),
        quantise("scaled_fp4_experts_quant", r.k),
        multiply(2 * inner, r.k),
        quantise("silu_and_mul_scaled_fp4_experts_quant", 2 * inner),
        multiply(r.k, inner),
    ]


def _mxfp8(r: QuantCallRequest) -> list[Due]:
    return [
        Due("mxfp8_quantize", {"input": _t("bfloat16", r.tokens, r.k)}, {"is_sf_swizzled_layout": "True"}),
    ]


def _interleave(r: QuantCallRequest) -> list[Due]:
    return [Due("block_scale_interleave", {"unswizzled_sf": _t("uint8", r.experts, r.n, r.k // 16)}, {})]


PATHS = {
    "linear, FlashInfer": _Path("linear", (10, 12), lambda r: [_quantise(r), _mm_fp4(r)]),
    "linear, vLLM": _Path("linear", (10, 12), lambda r: [_vllm_quantise(r), _vllm_mm(r)]),
    "linear, vLLM through FlashInfer": _Path("linear", (10, 12), lambda r: [_vllm_quantise(r), _mm_fp4(r)]),
    "groups, FlashInfer": _Path("grouped", (12,), _groupwise),
    "batched groups, FlashInfer CuTe DSL": _Path("grouped", (10,), _batched),
    "MoE, vLLM": _Path("grouped", (10, 12), _cutlass_moe),
    "batched MoE, vLLM through FlashInfer CuTe DSL": _Path("grouped", (10,), _batched_moe),
    "MXFP8, FlashInfer": _Path("step", (10, 12), _mxfp8),
    "scale tiles, FlashInfer": _Path("step", (10, 12), _interleave),
}
#: What every stack's calls must hold at least one of.
KINDS = ("linear", "grouped")
