"""vLLM's operators for NVIDIA GPUs that DeepSeek-V4 calls, with arguments made up: T tokens (the batch).

Written from vLLM 0.33.0's signatures, and seen to run and to pass there on an H200 (SM90).
"""

from .op_case import case

#: The hidden size is DeepSeek-V4-Flash's: TileLang's kernels are built for a model's own.
_HIDDEN, _STREAMS, _EPS = 4096, 4, 1e-6
_MIXES = 2 * _STREAMS + _STREAMS**2


def _mhc_pre(m):
    streams, fn = m.bf16(m.t, _STREAMS, _HIDDEN), m.floats(_MIXES, _STREAMS * _HIDDEN) / 64
    return streams, fn, m.floats(3), m.floats(_MIXES), _EPS, _EPS, _EPS, 2.0, 20


def _mhc_post(m):
    streams = m.bf16(m.t, _STREAMS, _HIDDEN)
    return m.bf16(m.t, _HIDDEN), streams, m.floats(m.t, _STREAMS, 1), m.floats(m.t, _STREAMS, _STREAMS)


_MHC = "vllm.model_executor.layers.mhc"
CASES = (
    case("vllm::mhc_pre_tilelang", _mhc_pre, registers=_MHC),
    case("vllm::mhc_post_tilelang", _mhc_post, registers=_MHC),
)
