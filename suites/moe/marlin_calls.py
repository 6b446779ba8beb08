"""What vLLM is due to call of its compiled library for Marlin's MXFP4 MoE: repacking, GEMMs, activation, sum.

Marlin's tiles are 16 x 16: (K, N) codes of four bits are (K / 16, 2 N) int32; its scales are (K / 32, N) E8M0.
Source: vLLM 0.33.0, `marlin_utils_fp4.py` and `experts/marlin_moe.py`.
"""

from __future__ import annotations

from conformance.result import Finding
from conformance.stacks.protocols import MoeCall, MoeRequest, TensorInfo

FUNCTIONS = ("gptq_marlin_repack", "moe_wna16_marlin_gemm", "silu_and_mul_with_clamp", "moe_sum")
_ON = "True"


def wrong(calls: list[MoeCall], request: MoeRequest, tokens: int, slots: int) -> list[Finding]:
    """Calls in their order against what is due: one repacking an expert and matrix, then one call of each other."""
    w13, w2 = (request.weights.info(name) for name in ("w13_weight", "w2_weight"))
    hidden, width, e = w2.rows, w13.rows // 2, request.experts
    rows = tokens * slots
    due: list[tuple[str, dict[str, TensorInfo], dict[str, str]]] = [
        *(_repack(hidden, 2 * width) for _ in range(e)),
        *(_repack(width, hidden) for _ in range(e)),
        _gemm(e, tokens, rows, hidden, 2 * width, slots, weighted=False),
        (
            "silu_and_mul_with_clamp",
            {"input": _bf16(rows, 2 * width), "output": _bf16(rows, width)},
            {"clamp_limit": str(request.limit)},
        ),
        _gemm(e, rows, rows, width, hidden, 1, weighted=True),
        ("moe_sum", {"input": _bf16(tokens, slots, hidden), "output": _bf16(tokens, hidden)}, {}),
    ]
    made = [call for call in calls if call.function in FUNCTIONS and not call.refused]
    names, due_names = [call.function for call in made], [name for name, _, _ in due]
    if names != due_names:
        return [_finding(request.rank, "order of calls", ", ".join(due_names), ", ".join(names) or "none")]
    findings = []
    for number, (call, (name, tensors, values)) in enumerate(zip(made, due, strict=True)):
        where = f"call {number}, {name}"
        for argument, info in tensors.items():
            got = call.tensors.get(argument)
            if got != info:
                findings.append(_finding(request.rank, f"{where}, {argument}", _words(info), _words(got)))
        for argument, value in values.items():
            if call.values.get(argument) != value:
                got_value = call.values.get(argument, "not given")
                findings.append(_finding(request.rank, f"{where}, {argument}", value, got_value))
    return findings


def _repack(k: int, n: int) -> tuple[str, dict[str, TensorInfo], dict[str, str]]:
    """(K, N) of one expert: eight codes an int32, along K."""
    sizes = {"size_k": str(k), "size_n": str(n), "num_bits": "4"}
    return "gptq_marlin_repack", {"b_q_weight": TensorInfo("int32", (k // 8, n))}, sizes


def _gemm(
    e: int, m: int, rows: int, k: int, n: int, slots: int, weighted: bool
) -> tuple[str, dict[str, TensorInfo], dict[str, str]]:
    tensors = {
        "input": _bf16(m, k),
        "output": _bf16(rows, n),
        "b_qweight": TensorInfo("int32", (e, k // 16, 2 * n)),
        "b_scales": TensorInfo("float8_e8m0fnu", (e, k // 32, n)),
    }
    values = {
        "size_m": str(m),
        "size_n": str(n),
        "size_k": str(k),
        "top_k": str(slots),
        "b_q_type": "float4_e2m1f",
        "mul_topk_weights": str(weighted),
        "use_fp32_reduce": _ON,
    }
    return "moe_wna16_marlin_gemm", tensors, values


def _bf16(*shape: int) -> TensorInfo:
    return TensorInfo("bfloat16", shape)


def _words(info: TensorInfo | None) -> str:
    if info is None:
        return "not given"
    return f"{info.dtype} {list(info.shape)}" + ("" if info.contiguous else ", not contiguous")


def _finding(rank: int, where: str, due: str, got: str) -> Finding:
    return Finding(f"rank {rank}, {where}", due, got, "the kernel would read other memory than was meant", rank=rank)
