"""DeepSeek-V4's attention on vLLM's CPU platform: the methods of vLLM's own modules, on tensors that the harness gives.

Modules are built where weights are theirs (`output`). Elsewhere the real method runs on a bare object that carries just
the attributes which that method reads, under a forward context of ours: caches, block tables and positions are the
harness's.
"""

from types import SimpleNamespace

from . import attention_layer, cpu_compressor, cpu_indexer
from .cpu_modules import TOKENS, check, classes, context, pages, rotation

NAME = "layer"
DEVICE = "cpu"


def capabilities():
    """AttentionCapabilities' fields."""
    import torch

    check()
    return {
        "parts": ["table", "queries", "insert", "attend", "step", "compressor", "select", "output"],
        "phases": ["decode", "prefill"],
        "probabilities": "bfloat16",
        "projection": "bfloat16",
        "small_blocks": "scale",
        "slots": "int64",
        "select_k": [512],
        "tokens": TOKENS,
        "device": DEVICE,
        "device_words": f"CPU, vLLM's DeepseekV4CPUAttention ({torch.__version__})",
        "notes": [
            "one kernel is behind decode and prefill; it takes no lengths: slots behind a row's length are -1 for it",
            "methods run on bare objects that carry what they read; only the output projection is a built module",
            *attention_layer.PATCHES,
        ],
    }


def padded(heads):
    return classes().DeepseekV4CPUAttention.get_padded_num_q_heads(heads)


def _fused(q, kv, positions, table, eps, cache, tokens, slots):
    """DeepseekV4CPUAttention._fused_qnorm_rope_kv_insert."""
    from vllm.v1.attention.backends.mla.sparse_swa import DeepseekSparseSWAMetadata

    kind = classes().DeepseekV4CPUAttention
    heads = q.shape[1]
    layer = SimpleNamespace(
        n_local_heads=heads,
        padded_heads=kind.get_padded_num_q_heads(heads),
        swa_cache_layer=SimpleNamespace(prefix=NAME, kv_cache=cache),
        rotary_emb=rotation(table),
        eps=eps,
    )
    metadata = DeepseekSparseSWAMetadata(block_table=None, slot_mapping=slots, block_size=tokens)
    return kind._fused_qnorm_rope_kv_insert(layer, q, kv, positions, {NAME: metadata})


def table(lent, config, ratio):
    lent["out"].copy_(attention_layer.table(config, ratio, len(lent["out"])))


def queries(lent, eps):
    import torch

    q = lent["q"]
    nothing = torch.zeros(len(q), q.shape[2], dtype=q.dtype)
    cache = torch.zeros(1, 64, 584, dtype=torch.uint8)
    slots = torch.full((len(q),), -1, dtype=torch.int64)
    lent["out"].copy_(_fused(q, nothing, lent["positions"], lent["table"], eps, cache, 64, slots))


def insert(lent, tokens):
    import torch

    kv = lent["kv"]
    q = torch.zeros(len(kv), 1, kv.shape[1], dtype=kv.dtype)
    cache = pages(lent["pages"], tokens, 584)
    _fused(q, kv, lent["positions"], lent["table"], 1e-6, cache, tokens, lent["slots"])


def _valid(slots, lengths):
    """Slots with -1 behind each row's length."""
    import torch

    behind = torch.arange(slots.shape[1])[None] >= lengths[:, None]
    return slots.masked_fill(behind, -1).long()


def attend(lent, scale, phase, window_tokens, compressed_tokens):
    """`flash_mla_with_kvcache_cpu`, as DeepseekV4CPUAttention.forward_mqa calls it."""
    import torch
    from vllm import _custom_ops as ops

    del phase  # one kernel for both
    window = pages(lent["window"], window_tokens, 584)
    window = window.view(len(window), -1)
    slots = _valid(lent["window_slots"], lent["window_lengths"])
    compressed, chosen, size = window, slots.new_full((len(slots), 0), -1), 1
    if compressed_tokens:
        compressed, size = pages(lent["compressed"], compressed_tokens, 584), compressed_tokens
        compressed = compressed.view(len(compressed), -1)
        chosen = _valid(lent["compressed_slots"], lent["compressed_lengths"])
    with torch.no_grad():
        ops.flash_mla_with_kvcache_cpu(
            lent["out"], lent["q"], window, slots, window_tokens, compressed, chosen, size, lent["sinks"], scale
        )


def step(lent, scale, window, window_tokens, ratio, compressed_tokens):
    """DeepseekV4CPUAttention.forward_mqa."""
    from vllm.models.deepseek_v4.sparse_mla import DeepseekV4FlashMLAMetadata
    from vllm.v1.attention.backends.mla.sparse_swa import DeepseekSparseSWAMetadata

    q, requests = lent["q"], lent["requests"]
    metadata = {
        "window": DeepseekSparseSWAMetadata(
            block_table=lent["window_table"],
            slot_mapping=None,
            block_size=window_tokens,
            token_to_req_indices=requests,
        )
    }
    layer = SimpleNamespace(
        prefix=NAME,
        compress_ratio=max(ratio, 1),
        window_size=window,
        swa_cache_layer=SimpleNamespace(prefix="window", kv_cache=pages(lent["window"], window_tokens, 584)),
        attn_sink=lent["sinks"],
        scale=scale,
    )
    if ratio > 1:
        table = lent["compressed_table"]
        layer.kv_cache = pages(lent["compressed"], compressed_tokens, 584)
        layer.topk_indices_buffer = lent.get("selected")
        layer.max_model_len = table.shape[1] * compressed_tokens * ratio
        metadata[NAME] = DeepseekV4FlashMLAMetadata(
            num_reqs=len(table),
            max_query_len=len(q),
            max_seq_len=int(lent["lengths"].max()) if len(table) else 0,
            num_actual_tokens=len(q),
            query_start_loc=None,
            slot_mapping=None,
            block_table=table,
            req_id_per_token=requests,
            block_size=compressed_tokens * ratio,
            topk_tokens=0,
        )
    with context(metadata):
        classes().DeepseekV4CPUAttention.forward_mqa(layer, q, None, lent["positions"], lent["out"])


CALLS = {
    "table": table,
    "queries": queries,
    "insert": insert,
    "attend": attend,
    "step": step,
    "open_compressor": cpu_compressor.open_compressor,
    "run_compressor": cpu_compressor.run_compressor,
    "close_compressor": cpu_compressor.close_compressor,
    "select": cpu_indexer.select,
    "open_output": attention_layer.open_output,
    "run_output": attention_layer.run_output,
    "close_output": attention_layer.close_output,
}
