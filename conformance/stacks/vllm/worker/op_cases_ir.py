"""Operators that vLLM defines in Python for every platform (`vllm.ir`), as RMSNorm calls them."""

from .op_case import case

_HIDDEN, _EPS = 256, 1e-6
_OPS = "vllm.ir.ops"


def _norm(m):
    return m.bf16(m.t, _HIDDEN), m.bf16(_HIDDEN), _EPS


def _norm_added(m):
    return m.bf16(m.t, _HIDDEN), m.bf16(m.t, _HIDDEN), m.bf16(_HIDDEN), _EPS


CASES = (case("vllm_ir::rms_norm", _norm, _OPS), case("vllm_ir::fused_add_rms_norm", _norm_added, _OPS))
