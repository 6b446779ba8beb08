"""FlashMLA's sparse kernels for DeepSeek-V4 on SM90, with vLLM's fused query and KV insert: called as vLLM calls them.

Imported are the extensions and FlashMLA's own interface; vLLM's model modules only for the gather of its prefill.
"""

from . import attention_layer
from .problems import Refused, Unsupported, stacks_words

DEVICE = "cuda"
TOKENS = 4096
#: Head counts of the decode kernel (prefill takes 8, 16 and 32 too, but vLLM pads once for both). Source: vLLM's
#: DeepseekV4FlashMLAAttention.get_padded_num_q_heads.
HEADS = (64, 128)
#: Both caches' slots come in blocks of this many. Source: FlashMLA, sm90/decode/sparse_fp8.
ALIGNED = 64
_INSERT = "fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert"
#: Bytes of a token's data row and scale row together.
_ROW = 584


def interface():
    """FlashMLA's Python interface as vLLM ships it. Raises Unsupported for another GPU or a vLLM without it."""
    import torch

    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        raise Unsupported(f"FlashMLA's DeepSeek-V4 kernels are driven on capability 9.0; this GPU's is {capability}")
    try:
        from vllm.third_party.flashmla import flash_mla_interface
    except ImportError as error:
        raise Unsupported(f"this vLLM has no FlashMLA: {stacks_words(error)}") from error
    return flash_mla_interface


def _gather():
    """vLLM's kernel that makes BF16 rows of cache pages, or why there is none here."""
    try:
        from vllm.models.deepseek_v4.common.ops import dequantize_and_gather_k_cache
    except Exception as error:
        return None, stacks_words(error)
    return dequantize_and_gather_k_cache, ""


def capabilities():
    import torch

    interface()
    parts, notes = ["attend"], list[str]()
    if hasattr(torch.ops._C, _INSERT):
        parts += ["queries", "insert"]
    gather, lacking = _gather()
    if gather is None:
        notes.append(f"no prefill: vLLM's gather cannot be imported here: {lacking}")
    try:
        attention_layer.rope()
        parts.append("table")
    except Unsupported as error:
        notes.append(f"no table: {error}")
    projected = _projected()
    if projected is None:
        parts.append("output")
        scales = {"projection": "e4m3", "scales": "float32 128x128"}
    else:
        notes.append(f"no output projection: {projected}")
        scales = {}
    return {
        **scales,
        "parts": parts,
        "phases": ["decode", "prefill"] if gather else ["decode"],
        "heads": list(HEADS),
        "aligned_slots": ALIGNED,
        "tokens": TOKENS,
        "device": DEVICE,
        "device_words": f"{torch.cuda.get_device_name()}, vLLM's FlashMLA",
        "notes": notes,
    }


def _projected():
    """None where vLLM's output projection runs here, else why it does not: DeepGEMM multiplies for it."""
    try:
        from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention  # noqa: F401
        from vllm.utils.deep_gemm import _import_deep_gemm
    except Exception as error:
        return f"vLLM's attention module cannot be imported here: {stacks_words(error)}"
    return None if _import_deep_gemm() else "this vLLM has no DeepGEMM that can be imported"


def padded(heads):
    for size in HEADS:
        if heads <= size:
            return size
    raise Refused(f"FlashMLA's FP8 decode takes {' or '.join(map(str, HEADS))} heads; {heads} were asked for")


def _cache(data, tokens):
    """(pages, tokens, 1, 584) with a page's whole length between two."""
    return data.as_strided((data.shape[0], tokens, 1, _ROW), (data.stride(0), _ROW, _ROW, 1))


def _fused(q, kv, positions, table, eps, data, tokens, slots):
    import torch

    flat = data.as_strided((data.shape[0], tokens * _ROW), (data.stride(0), 1))
    insert = getattr(torch.ops._C, _INSERT)
    return insert(q, kv, flat, slots, positions, table, padded(q.shape[1]), eps, tokens)


def queries(lent, eps):
    import torch

    q = lent["q"]
    kv = torch.zeros(len(q), q.shape[2], dtype=q.dtype, device=DEVICE)
    page = torch.zeros(1, 64 * 585, dtype=torch.uint8, device=DEVICE)
    slots = torch.full((len(q),), -1, dtype=torch.int64, device=DEVICE)
    lent["out"].copy_(_fused(q, kv, lent["positions"], lent["table"], eps, page, 64, slots))


def insert(lent, tokens):
    import torch

    kv = lent["kv"]
    q = torch.zeros(len(kv), 8, kv.shape[1], dtype=kv.dtype, device=DEVICE)
    _fused(q, kv, lent["positions"], lent["table"], 1e-6, lent["pages"], tokens, lent["slots"])


def table(lent, config, ratio):
    lent["out"].copy_(attention_layer.table(config, ratio, len(lent["out"])))


def attend(lent, scale, phase, window_tokens, compressed_tokens):
    if not len(lent["q"]):
        return
    (_prefill if phase == "prefill" else _decode)(lent, scale, window_tokens, compressed_tokens)


def _decode(lent, scale, window_tokens, compressed_tokens):
    """Each token a request of its own, as DeepseekV4FlashMLAAttention._forward_decode calls it."""
    flashmla = interface()
    extra = {}
    if compressed_tokens:
        extra = {
            "extra_k_cache": _cache(lent["compressed"], compressed_tokens),
            "extra_indices_in_kvcache": lent["compressed_slots"][:, None],
            "extra_topk_length": lent["compressed_lengths"],
        }
    flashmla.flash_mla_with_kvcache(
        q=lent["q"][:, None],
        k_cache=_cache(lent["window"], window_tokens),
        block_table=None,
        head_dim_v=512,
        tile_scheduler_metadata=flashmla.FlashMLASchedMeta(),
        cache_seqlens=None,
        is_fp8_kvcache=True,
        indices=lent["window_slots"][:, None],
        topk_length=lent["window_lengths"],
        softmax_scale=scale,
        attn_sink=lent["sinks"],
        out=lent["out"][:, None],
        **extra,
    )


def _prefill(lent, scale, window_tokens, compressed_tokens):
    """BF16 rows of both caches one behind the other, gathered by vLLM's kernel; the compressed entries' indices come
    first in a row, the window's behind them, as combine_topk_swa_indices puts them."""
    import torch

    sources = [(lent["window"], window_tokens, lent["window_slots"], lent["window_lengths"])]
    if compressed_tokens:
        sources.insert(0, (lent["compressed"], compressed_tokens, lent["compressed_slots"], lent["compressed_lengths"]))
    rows = sum(data.shape[0] * tokens for data, tokens, _, _ in sources)
    kv = torch.empty(1, rows, 512, dtype=torch.bfloat16, device=DEVICE)
    columns = sum(slots.shape[1] for _, _, slots, _ in sources)
    chosen = torch.full((len(lent["q"]), -(-columns // 128) * 128), -1, dtype=torch.int32, device=DEVICE)
    lengths = torch.zeros(len(lent["q"]), dtype=torch.int32, device=DEVICE)
    offset = 0
    for data, tokens, slots, given in sources:
        pages = data.shape[0]
        _gather()[0](
            kv,
            _cache(data, tokens)[:, :, 0],
            seq_lens=torch.tensor([pages * tokens], dtype=torch.int32, device=DEVICE),
            gather_lens=None,
            block_table=torch.arange(pages, dtype=torch.int32, device=DEVICE)[None],
            block_size=tokens,
            offset=offset,
        )
        column = torch.arange(slots.shape[1], device=DEVICE)[None]
        counted = column < given[:, None]
        where = (lengths[:, None] + column)[counted].long()
        row = torch.arange(len(slots), device=DEVICE)[:, None].expand_as(slots)[counted]
        values = slots[counted]
        chosen[row, where] = torch.where(values >= 0, values + offset, values).int()
        lengths += given
        offset += pages * tokens
    interface().flash_mla_sparse_fwd(
        q=lent["q"],
        kv=kv.view(-1, 1, 512),
        indices=chosen[:, None],
        sm_scale=scale,
        attn_sink=lent["sinks"],
        topk_length=lengths,
        out=lent["out"],
    )


CALLS = {
    "table": table,
    "queries": queries,
    "insert": insert,
    "attend": attend,
    "open_output": attention_layer.open_output,
    "run_output": attention_layer.run_output,
    "close_output": attention_layer.close_output,
}
