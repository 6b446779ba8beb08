"""The C4 indexer on vLLM's CPU platform: DeepseekV4CPUIndexer.forward, then SparseAttnIndexer.forward_cpu."""

from types import SimpleNamespace

from . import cpu_modules

_KEYS = "keys"
#: Entries of a page of the indexer's cache, and bytes of one: 128 E4M3 and a float32 scale. Source: DeepseekV4Indexer.
_TOKENS, _WIDTH = 64, 132
RATIO = 4


def cache(keys):
    """keys (B, entries, 128) as pages (B n, 64, 132) and a block table (B, n): in a page first all codes, then all
    scales, a power of two each."""
    import torch

    requests, entries, width = keys.shape
    each = max(1, -(-entries // _TOKENS))
    padded = torch.zeros(requests, each * _TOKENS, width)
    padded[:, :entries] = keys.float()
    amax = padded.abs().amax(-1, keepdim=True).clamp_min(1e-4)
    scale = torch.exp2(torch.ceil(torch.log2(amax / 448)))
    codes = (padded / scale).to(torch.float8_e4m3fn).view(torch.uint8).view(requests * each, _TOKENS * width)
    scales = scale.view(requests * each, _TOKENS).view(torch.uint8)
    pages = torch.cat([codes, scales], dim=1).view(-1, _TOKENS, _WIDTH)
    return pages, torch.arange(requests * each, dtype=torch.int32).view(requests, each)


def select(lent, k):
    import torch
    from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer

    kind = cpu_modules.classes().DeepseekV4CPUIndexer
    q, weights, positions, requests = (lent[name] for name in ("q", "weights", "positions", "requests"))
    if not len(q):
        return
    pages, table = cache(lent["keys"])
    chosen = torch.full((len(q), k), -1, dtype=torch.int32)
    held = SimpleNamespace(prefix=_KEYS, kv_cache=pages)
    indexer = SimpleNamespace(
        k_cache=held,
        compress_ratio=RATIO,
        topk_tokens=k,
        topk_indices_buffer=chosen,
        n_head=q.shape[1],
        head_dim=q.shape[2],
        softmax_scale=q.shape[1] ** 0.5,  # the weights are scaled already; the module's other factor is heads^-0.5
        compressor=lambda *_: None,
        _wq_b_proj=lambda *_: q.view(len(q), -1),
    )
    indexer._fill_short_context_topk = lambda *given: kind._fill_short_context_topk(indexer, *given)
    op = SimpleNamespace(
        use_fp4_cache=False,
        dcp_world_size=1,
        use_pcp=False,
        k_cache=held,
        topk_tokens=k,
        topk_indices_buffer=chosen,
        skip_k_cache_insert=True,
    )
    still = torch.zeros(int(positions.max()) + 1, 64)  # the queries are rotated already
    still[:, :32] = 1
    with cpu_modules.context({_KEYS: _metadata(positions, requests, table)}):
        rotation = cpu_modules.rotation(still)
        codes, _, scaled = kind.forward(indexer, None, None, None, weights, positions, rotation)
        if codes is not None:
            SparseAttnIndexer.forward_cpu(op, q, codes, None, scaled)
    lent["out"].copy_(chosen)


def _metadata(positions, requests, table):
    """As vLLM's builder makes it: requests of one token each are decoded, others prefilled in one chunk."""
    import torch
    from vllm.v1.attention.backends.mla import indexer

    tokens, entries = len(positions), ((positions + 1) // RATIO).int()
    common = {
        "seq_lens": None,
        "max_seq_len": int(positions.max()) + 1,
        "slot_mapping": torch.full((tokens,), -1, dtype=torch.int64),
    }
    present, counts = torch.unique_consecutive(requests.long(), return_counts=True)
    if int(counts.max()) == 1:
        decode = indexer.DeepSeekV32IndexerDecodeMetadata(
            block_table=table[present],
            seq_lens=entries[:, None],
            decode_lens=counts.int(),
            requires_padding=False,
            schedule_metadata=None,
        )
        counted = {"num_decodes": tokens, "num_decode_tokens": tokens, "num_prefills": 0, "num_prefill_tokens": 0}
        return indexer.DeepseekV32IndexerMetadata(**common, **counted, decode=decode)
    last = torch.cumsum(counts, 0)
    lengths = entries[last - 1].long()
    starts = torch.cumsum(lengths, 0) - lengths
    rows = torch.repeat_interleave(torch.arange(len(present)), counts)
    first = starts[rows].int()
    cumulated = torch.cat([starts, lengths.sum()[None]]).int()
    chunk = indexer.DeepseekV32IndexerPrefillChunkMetadata(
        block_table=table[present],
        cu_seqlen_ks=first,
        cu_seqlen_ke=first + entries,
        cu_seq_lens=cumulated,
        token_to_seq=None,
        total_seq_lens=int(lengths.sum()),
        token_start=0,
        token_end=tokens,
        num_reqs=len(present),
        local_cu_seq_lens=cumulated,
        local_total_seq_lens=int(lengths.sum()),
        max_local_total_seq_lens=int(lengths.sum()),
    )
    prefill = indexer.DeepseekV32IndexerPrefillMetadata([chunk])
    counted = {"num_decodes": 0, "num_decode_tokens": 0, "num_prefills": len(present), "num_prefill_tokens": tokens}
    return indexer.DeepseekV32IndexerMetadata(**common, **counted, prefill=prefill)
