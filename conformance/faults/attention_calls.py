"""Faults of the attention call that an adapter makes on a GPU that is not there: names, dtypes, shapes."""

from __future__ import annotations

from conformance.faults.attention_seam import AttentionFault
from conformance.stacks.protocols import MoeCall, TensorInfo

_QUERIES = ("q", "query", "q_nope")
_SINKS = ("attn_sink", "sinks")
_SLOTS = ("indices", "sparse_indices")


def _renamed(calls: list[MoeCall]) -> None:
    calls[-1].refused = "got an unexpected keyword argument 'swa_topk_lens'"


def _heads_unpadded(calls: list[MoeCall]) -> None:
    """24 heads, as the rank has them."""
    for name in (*_QUERIES, "out"):
        if info := calls[-1].tensors.get(name):
            calls[-1].tensors[name] = TensorInfo(info.dtype, (*info.shape[:-2], 24, info.shape[-1]))


def _sinks_of_rank(calls: list[MoeCall]) -> None:
    """Sinks for the rank's heads alone: the kernel reads on behind them."""
    for name in _SINKS:
        if name in calls[-1].tensors:
            calls[-1].tensors[name] = TensorInfo("float32", (24,))


def _slots_long(calls: list[MoeCall]) -> None:
    for name in _SLOTS:
        if info := calls[-1].tensors.get(name):
            calls[-1].tensors[name] = TensorInfo("int64", info.shape)


def _entries_left_out(calls: list[MoeCall]) -> None:
    """Compressed entries are not handed over."""
    for name in ("extra_indices_in_kvcache", "extra_sparse_indices"):
        calls[-1].tensors.pop(name, None)
    info = calls[-1].tensors.get("sparse_indices")
    if info and info.shape[-1] > 128:
        calls[-1].tensors["sparse_indices"] = TensorInfo("int32", (*info.shape[:-1], 128))


renamed = AttentionFault(call=_renamed)
heads_unpadded = AttentionFault(call=_heads_unpadded)
sinks_of_rank = AttentionFault(call=_sinks_of_rank)
slots_long = AttentionFault(call=_slots_long)
entries_left_out = AttentionFault(call=_entries_left_out)
