"""Operators that vLLM has on every platform, T tokens: in its compiled library, and in Python (`vllm.ir`), as RMSNorm
calls them; a CPU runs those.
"""

from .op_case import case

_HIDDEN, _EPS = 256, 1e-6


def _silu(m):
    x = m.bf16(m.t, 2 * _HIDDEN)
    return m.empty(x[:, :_HIDDEN].contiguous()), x


def _norm_into(m):
    x = m.bf16(m.t, _HIDDEN)
    return m.empty(x), x, m.bf16(_HIDDEN), _EPS


def _norm(m):
    return m.bf16(m.t, _HIDDEN), m.bf16(_HIDDEN), _EPS


def _norm_added(m):
    return m.bf16(m.t, _HIDDEN), m.bf16(m.t, _HIDDEN), m.bf16(_HIDDEN), _EPS


_COMPILED, _PYTHON = "vllm._custom_ops", "vllm.ir.ops"
CASES = (
    case("_C::silu_and_mul", _silu),
    case("_C::rms_norm", _norm_into, _COMPILED),
    case("_C::fused_add_rms_norm", _norm_added, _COMPILED),
    case("vllm_ir::rms_norm", _norm, _PYTHON),
    case("vllm_ir::fused_add_rms_norm", _norm_added, _PYTHON),
)
