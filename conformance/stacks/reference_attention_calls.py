"""What the reference stack would call for attention on GPUs: FlashMLA's and FlashInfer's calls written down by hand, so
that checks of calls have something that is right to look at, and faults something to spoil."""

from __future__ import annotations

from conformance.errors import NotSupported
from conformance.stacks.attention_calls_protocol import ENTRIES, WINDOW, CallRequest
from conformance.stacks.protocols import MoeCall, TensorInfo

_SCALE = str(512**-0.5)


def calls(request: CallRequest) -> list[MoeCall]:
    made = {9: _flashmla, 10: _one_table, 12: _packed}.get(request.capability[0])
    if made is None:
        major, minor = request.capability
        raise NotSupported(f"no DeepSeek-V4 attention is known for capability {major}.{minor}")
    return [made(request)]


def _flashmla(request: CallRequest) -> MoeCall:
    t, rows = request.tokens, (request.tokens, 1, 64, 512)
    call = MoeCall("flash_mla_with_kvcache")
    call.tensors = {
        "q": TensorInfo("bfloat16", rows),
        "k_cache": TensorInfo("uint8", (3, 64, 1, 584), False),
        "indices": TensorInfo("int32", (t, 1, WINDOW)),
        "topk_length": TensorInfo("int32", (t,)),
        "attn_sink": TensorInfo("float32", (64,)),
        "out": TensorInfo("bfloat16", rows),
    }
    call.values = {"head_dim_v": "512", "is_fp8_kvcache": "True", "softmax_scale": _SCALE}
    if request.ratio:
        call.tensors["extra_k_cache"] = TensorInfo("uint8", (3, 256 // request.ratio, 1, 584), False)
        call.tensors["extra_indices_in_kvcache"] = TensorInfo("int32", (t, 1, ENTRIES))
        call.tensors["extra_topk_length"] = TensorInfo("int32", (t,))
    return call


def _packed(request: CallRequest) -> MoeCall:
    t, rows = request.tokens, (request.tokens, 32, 512)
    call = MoeCall("trtllm_batch_decode_sparse_mla_dsv4")
    call.tensors = {
        "query": TensorInfo("bfloat16", rows),
        "swa_kv_cache": TensorInfo("uint8", (3, 64, 1, 584), False),
        "sparse_indices": TensorInfo("int32", (t, 1, WINDOW)),
        "swa_topk_lens": TensorInfo("int32", (t,)),
        "sinks": TensorInfo("float32", (32,)),
        "out": TensorInfo("bfloat16", rows),
    }
    call.values = {"kv_layout": "NHD", "bmm1_scale": _SCALE}
    if request.ratio:
        call.tensors["compressed_kv_cache"] = TensorInfo("uint8", (3, 256 // request.ratio, 1, 584), False)
        call.tensors["extra_sparse_indices"] = TensorInfo("int32", (t, 1, ENTRIES))
        call.tensors["extra_sparse_topk_lens"] = TensorInfo("int32", (t,))
    return call


def _one_table(request: CallRequest) -> MoeCall:
    t, rows = request.tokens, (request.tokens, 64, 512)
    compressed = 256 // request.ratio if request.ratio else 64
    call = MoeCall("trtllm_batch_decode_sparse_mla_dsv4")
    call.tensors = {
        "query": TensorInfo("bfloat16", rows),
        "swa_kv_cache": TensorInfo("bfloat16", (3, 64, 512)),
        "compressed_kv_cache": TensorInfo("bfloat16", (3, compressed, 512)),
        "sparse_indices": TensorInfo("int32", (t, WINDOW + (ENTRIES if request.ratio else 0))),
        "sparse_topk_lens": TensorInfo("int32", (t,)),
        "seq_lens": TensorInfo("int32", (t,)),
        "cum_seq_lens_q": TensorInfo("int32", (t + 1,)),
        "sinks": TensorInfo("float32", (64,)),
        "out": TensorInfo("bfloat16", rows),
    }
    call.values = {"max_q_len": "1", "bmm1_scale": _SCALE}
    return call
