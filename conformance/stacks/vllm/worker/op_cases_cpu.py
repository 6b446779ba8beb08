"""vLLM's operators for CPUs that DeepSeek-V4 calls, with arguments made up: T tokens (the batch), other values for each
number. Shapes are small ones that the kernels take; caches are pages as vLLM lays them out.

Beside its path lie experts in BF16, and what wants AMX-FP8.

Left out are `vllm::moe_forward*` and `vllm::deepseek_v4_cpu_prepare_and_attn`: they call a layer, built and found by
name, whose own operators are these.
"""

from .op_case import case

_HIDDEN, _STREAMS, _HEADS, _HEAD, _ROPE, _EXPERTS, _TOP = 256, 4, 8, 512, 64, 256, 6
#: Tokens of a page; bytes of a token in the attention's cache (448 E4M3, 64 BF16, 8 of scales) and in the indexer's.
_PAGE, _WIDTH, _INDEXED = 64, 584, 132
_PLACES = 256
_EPS = 1e-6


def _pages(m, count):
    """(count, 64 * 584) uint8: tokens first, then scales, all of them 1."""
    made = m.integers(0x38, 0x40, count, _PAGE * _WIDTH, dtype="uint8")
    made[:, _PAGE * (_WIDTH - 8) :] = 127
    return made


def _indexed(m, count):
    """(count, 64 * 132) uint8: 128 E4M3 a token, then a float32 scale of 1 for each."""
    import torch

    made = m.integers(0x28, 0x40, count, _PAGE * _INDEXED, dtype="uint8")
    made[:, _PAGE * 128 :] = torch.ones(_PAGE).view(torch.uint8)
    return made


def _mixing(m, outputs):
    """fn (outputs, streams * H), scale and base, float32."""
    return m.floats(outputs, _STREAMS * _HIDDEN) / 16, m.floats(3 if outputs > _STREAMS else 1), m.floats(outputs)


def _hc_pre(m):
    return m.bf16(m.t, _STREAMS, _HIDDEN), *_mixing(m, 2 * _STREAMS + _STREAMS**2), _STREAMS, 20, _EPS, _EPS


def _hc_post(m):
    streams = m.bf16(m.t, _STREAMS, _HIDDEN)
    return m.bf16(m.t, _HIDDEN), streams, m.floats(m.t, _STREAMS), m.floats(m.t, _STREAMS, _STREAMS)


def _hc_head(m):
    return m.bf16(m.t, _STREAMS, _HIDDEN), *_mixing(m, _STREAMS), _EPS, _EPS


def _biased_topk(m):
    logits = m.floats(m.t, _EXPERTS)
    return logits, m.floats(m.t, _EXPERTS), m.floats(_EXPERTS), _TOP, True, "sqrtsoftplus", 0, 1.5, True


def _hash_topk(m):
    chosen = m.distinct(m.t, _EXPERTS, _TOP, dtype="int32")
    return m.floats(m.t, _EXPERTS), chosen, _TOP, "sqrtsoftplus", 0, _EXPERTS, 1.5


def _fp8_linear(m):
    import torch

    weight = torch.ops._C.convert_weight_packed(m.bf16(128, _HIDDEN).to(torch.float8_e4m3fn))
    return m.bf16(m.t, _HIDDEN), weight, m.floats(1, 2).abs() + 0.5, [128, 128], None, torch.bfloat16, True


def _positions(m):
    return m.distinct(1, _PLACES, m.t, dtype="int64")[0]


def _slots(m):
    return m.distinct(1, 2 * _PAGE, m.t, dtype="int64")[0]


def _turning(m):
    """(places, 64) float32: cosines, then sines."""
    import torch

    angles = m.floats(_PLACES, _ROPE // 2)
    return torch.cat([angles.cos(), angles.sin()], 1)


def _insert(m):
    q, kv = m.bf16(m.t, _HEADS, _HEAD), m.bf16(m.t, _HEAD)
    return q, kv, _positions(m), _pages(m, 2), _slots(m), _turning(m), _HEADS, _EPS, _PAGE


def _attend(m):
    q = m.bf16(m.t, _HEADS, _HEAD)
    window, entries = m.distinct(m.t, 2 * _PAGE, 16, dtype="int64"), m.distinct(m.t, 2 * _PAGE, 8, dtype="int64")
    sinks = m.floats(_HEADS)
    return m.empty(q), q, _pages(m, 2), window, _PAGE, _pages(m, 2), entries, _PAGE, sinks, _HEAD**-0.5


def _partial(m):
    """C4: 1024 columns of keys, 1024 of scores, pages of 4 tokens."""
    state = m.floats(32, 4, 2 * 1024)
    slots = m.distinct(1, 128, m.t, dtype="int64")[0]
    return m.floats(m.t, 1024), m.floats(m.t, 1024), m.floats(4, 1024), _positions(m), state, slots


def _compress(m, width, cache):
    state = m.floats(32, 4, 4 * width)
    gathered = m.distinct(m.t, 128, 8, dtype="int64")
    positions = _positions(m) // 4 * 4 + 3  # a window ends at each
    weight = m.floats(width)
    return state, gathered, positions, _slots(m), weight, _EPS, _turning(m), cache, _PAGE, 4


def _compress_indexer(m):
    return _compress(m, 128, _indexed(m, 2))


def _compress_main(m):
    return _compress(m, _HEAD, _pages(m, 2))


def _lengths(m):
    """Lengths and a table of three pages a token."""
    return m.integers(1, 3 * _PAGE + 1, m.t, dtype="int32"), m.distinct(m.t, 8, 3, dtype="int32")


def _logits(m):
    """All lengths are the longest: what lies behind a shorter one is left as it was allocated."""
    import torch

    q, (lengths, table) = m.bf16(m.t, _ROPE, 128).to(torch.float8_e4m3fn), _lengths(m)
    return q, _indexed(m, 8), m.floats(m.t, _ROPE), torch.full_like(lengths, 3 * _PAGE), table, _PAGE, 3 * _PAGE


def _topk(m):
    lengths, table = _lengths(m)
    scores, chosen = m.floats(m.t, 3 * _PAGE), m.integers(0, 9, m.t, 512, dtype="int32")
    return scores, lengths, table, chosen, _PAGE, chosen.clone()


def _indexer_queries(m):
    import torch

    q, weights = m.floats(m.t, _ROPE, 128), m.floats(m.t, _ROPE)
    codes = m.empty(q).to(torch.float8_e4m3fn)
    return _positions(m), q, _turning(m), codes, weights, 128**-0.5, _ROPE**-0.5, m.empty(weights)


def _rotated_back(m):
    return m.bf16(m.t, _HEADS, _HEAD), _positions(m), _turning(m), _ROPE


def _grouped(m):
    import torch

    weight = torch.ops._C.convert_weight_packed(m.bf16(2, 64, _HIDDEN))
    x = m.bf16(2, m.t, _HIDDEN)
    return m.empty(x[:, :, :64].contiguous()), x, weight, True, None


def _linear(m):
    import torch

    x = m.bf16(m.t, _HIDDEN)
    return m.empty(x[:, :64].contiguous()), x, torch.ops._C.convert_weight_packed(m.bf16(64, _HIDDEN)), None, True


def _experts(m):
    """BF16 experts: the MXFP4 ones need AMX."""
    import torch

    x, packed, experts = m.bf16(m.t, _HIDDEN), torch.ops._C.convert_weight_packed, 8
    w1, w2 = packed(m.bf16(experts, 2 * 128, _HIDDEN) / 16), packed(m.bf16(experts, _HIDDEN, 128) / 16)
    routes = m.floats(m.t, _TOP).abs(), m.distinct(m.t, experts, _TOP, dtype="int32")
    return m.empty(x), x, w1, w2, *routes, 0, None, None, None, None, None, None, None, None, None, None, True


def _packed(m):
    """The batch is of matrices: weights are packed when they are loaded, and no token is near."""
    return (m.bf16(m.t, 64, _HIDDEN),)


def _packed_scales(m):
    """Of MXFP4: a byte for 32 columns."""
    return (m.integers(120, 130, m.t, 64, _HIDDEN // 32, dtype="uint8"),)


def _quantised(m):
    """With a scale for each token."""
    return m.bf16(m.t, _HIDDEN), True, None


def _sampled(m):
    return (m.floats(m.t, 1024),)


_OPS = "vllm._custom_ops"
CASES = (
    case("_C::hc_pre_fused_cpu", _hc_pre, _OPS),
    case("_C::hc_post_fused_cpu", _hc_post, _OPS),
    case("_C::hc_head_fused_cpu", _hc_head, _OPS),
    case("_C::biased_topk_cpu", _biased_topk, _OPS),
    case("_C::hash_topk_cpu", _hash_topk, _OPS),
    case("_C::fp8_scaled_mm_cpu", _fp8_linear, _OPS),
    case("_C::fused_qnorm_rope_kv_insert_cpu", _insert, _OPS),
    case("_C::flash_mla_with_kvcache_cpu", _attend, _OPS),
    case("_C::save_partial_states_cpu", _partial, _OPS),
    case("_C::compress_norm_rope_store_cpu", _compress_main, _OPS),
    case("_C::compress_norm_rope_store_indexer_cpu", _compress_indexer, _OPS),
    case("_C::fp8_paged_mqa_logits_cpu", _logits, _OPS),
    case("_C::topk_transform_512_cpu", _topk, _OPS),
    case("_C::fused_indexer_q_rope_quant_cpu", _indexer_queries, _OPS),
    case("_C::inverse_gptj_rope_o_proj_cpu", _rotated_back, _OPS),
    case("_C::bmm_cpu", _grouped, _OPS),
    case("_C::convert_weight_packed", _packed),
    case("_C::convert_scale_packed", _packed_scales),
    case("_C::quantize_fp8e4m3_vec", _quantised),
    case("_C::greedy_argmax", _sampled),
    case("_C::weight_packed_linear", _linear),
    case("_C::fused_experts_cpu", _experts),
)
