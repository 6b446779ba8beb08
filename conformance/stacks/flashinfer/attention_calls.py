"""FlashInfer's calls for DeepSeek-V4's sparse attention, by capability: 9.0 has MLA over BF16 rows without sinks, 10.x
the TRTLLM-gen kernel over BF16 rows, 12.x the packed sparse kernel over the 584-byte cache. The latter two are made as
vLLM 0.33.0 makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from conformance.stacks.attention_protocol import AttendCall, Pages, Sparse

Function = Callable[..., Any]
WIDTH, ROW = 512, 584
#: Columns of the window in SM100's combined table of slots.
WINDOW = 128
#: Bytes. Source: vLLM's _FLASHINFER_DSV4_WORKSPACE_BUFFER_SIZE.
WORKSPACE = 128 << 20
_ROPE = 64


class AttentionLibrary(NamedTuple):
    """What is called of FlashInfer: its MLA wrapper's class (or what stands for it), its sparse DeepSeek-V4 decode."""

    mla: Function
    sparse: Function


def sm90(library: AttentionLibrary, call: AttendCall, out: torch.Tensor, workspace: torch.Tensor) -> None:
    """Each token a request of one query whose pages are its own tokens, one a page. The rotated part is inside the 512
    (K is V): MLA's own part for it is zeros on both sides."""
    pool, slots, lengths = _one_pool(call)
    device = call.q.device
    start = torch.zeros(len(call.q) + 1, dtype=torch.int32, device=device)
    start[1:] = torch.cumsum(lengths, 0)
    wrapper = library.mla(workspace, backend="fa3")
    wrapper.plan(
        qo_indptr=torch.arange(len(call.q) + 1, dtype=torch.int32, device=device),
        kv_indptr=start,
        kv_indices=slots,
        kv_len_arr=lengths,
        num_heads=call.q.shape[1],
        head_dim_ckv=WIDTH,
        head_dim_kpe=_ROPE,
        page_size=1,
        causal=False,
        sm_scale=call.scale,
        q_data_type=call.q.dtype,
        kv_data_type=pool.dtype,
    )
    wrapper.run(
        q_nope=call.q,
        q_pe=call.q.new_zeros(*call.q.shape[:2], _ROPE),
        ckv_cache=pool[:, None],
        kpe_cache=pool.new_zeros(len(pool), 1, _ROPE),
        out=out,
    )


def sm100(library: AttentionLibrary, call: AttendCall, out: torch.Tensor, workspace: torch.Tensor) -> None:
    """One table of slots: 128 columns of the window, then the compressed entries; a query's window is bounded by
    `seq_lens`, each token a request of its own."""
    tokens, device = len(call.q), call.q.device
    window, lengths = _padded(call.window, WINDOW), torch.full((tokens,), WINDOW, dtype=torch.int32, device=device)
    table, cache = window, _rows(call.window.pages)
    compressed = cache
    if call.compressed is not None:
        compressed = _rows(call.compressed.pages)
        width = -(-call.compressed.slots.shape[1] // 4) * 4
        table = torch.cat([window, _padded(call.compressed, width)], dim=1)
        lengths = lengths + call.compressed.lengths
    library.sparse(
        query=call.q,
        swa_kv_cache=cache,
        workspace_buffer=workspace,
        sparse_indices=table,
        sparse_indices_are_storage_offsets=True,
        compressed_kv_cache=compressed,
        sparse_topk_lens=lengths,
        seq_lens=call.window.lengths,
        bmm1_scale=call.scale,
        bmm2_scale=1.0,
        sinks=call.sinks,
        cum_seq_lens_q=torch.arange(tokens + 1, dtype=torch.int32, device=device),
        max_q_len=1,
        out=out,
    )


def sm120(library: AttentionLibrary, call: AttendCall, out: torch.Tensor, workspace: torch.Tensor) -> None:
    """Both caches packed, each with slots and lengths of its own."""
    extra: dict[str, Any] = {"compressed_kv_cache": None, "extra_sparse_indices": None, "extra_sparse_topk_lens": None}
    if call.compressed is not None:
        extra = {
            "compressed_kv_cache": _packed(call.compressed.pages),
            "extra_sparse_indices": call.compressed.slots[:, None],
            "extra_sparse_topk_lens": call.compressed.lengths,
        }
    library.sparse(
        query=call.q,
        swa_kv_cache=_packed(call.window.pages),
        workspace_buffer=workspace,
        sparse_indices=call.window.slots[:, None],
        out=out,
        bmm1_scale=call.scale,
        sinks=call.sinks,
        kv_layout="NHD",
        swa_topk_lens=call.window.lengths,
        **extra,
    )


def _packed(pages: Pages) -> torch.Tensor:
    """(pages, tokens, 1, 584) uint8, a page's whole length between two."""
    data = pages.data
    return data.as_strided((len(data), pages.tokens, 1, ROW), (data.stride(0), ROW, ROW, 1))


def _rows(pages: Pages) -> torch.Tensor:
    """(pages, tokens, 512) BF16."""
    return pages.data.view(torch.bfloat16).view(len(pages.data), pages.tokens, WIDTH)


def _padded(sparse: Sparse, width: int) -> torch.Tensor:
    """(T, width) int32: the slots that count, -1 behind them."""
    slots = sparse.slots[:, :width]
    column = torch.arange(slots.shape[1], device=slots.device)[None]
    kept = slots.masked_fill(column >= sparse.lengths[:, None], -1).int()
    return torch.nn.functional.pad(kept, (0, width - kept.shape[1]), value=-1)


def _one_pool(call: AttendCall) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """BF16 rows (N, 512) of both caches, the slots that count, row by row behind each other, int32, and how many each
    row has, int32. Slot -1 is left out: this kernel has none."""
    caches = [call.window] if call.compressed is None else [call.window, call.compressed]
    pools = [_rows(cache.pages).reshape(-1, WIDTH) for cache in caches]
    offsets = [0, len(pools[0])]
    tables = []
    for cache, offset in zip(caches, offsets, strict=False):
        slots = _padded(cache, cache.slots.shape[1])
        tables.append(torch.where(slots >= 0, slots + offset, slots))
    table = torch.cat(tables, dim=1)
    return torch.cat(pools), table[table >= 0], (table >= 0).sum(1, dtype=torch.int32)
