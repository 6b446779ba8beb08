"""Bookkeeping kernels that vLLM has in Triton alone, as PyTorch, through vLLM's own `register_kernels`.

They compute indices: which request a token belongs to, which cache slot a compressed entry goes to, how far a query
sees. Two more are launched and their results never read by the CPU attention: they do nothing here.
"""

import importlib
from itertools import pairwise

import torch

_METADATA = "vllm.v1.attention.ops.metadata._token_request_mapping_kernel"
_MLA = "vllm.v1.attention.backends.mla"


def arrange():
    """Register when the platform registers its own. What was changed, in words."""
    platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform
    inner = platform.register_triton_kernel_overrides.__func__
    if getattr(inner, "_conformance", False):
        return []

    def both(cls):
        inner(cls)
        if importlib.import_module("vllm.triton_utils").HAS_TRITON:
            return
        importlib.import_module("vllm.triton_utils.dispatcher").register_kernels(
            {
                _METADATA: request_of_token,
                f"{_MLA}.compressor_utils.CompressedSlotMappingKernel.kernel": compressed_slots,
                f"{_MLA}.indexer.BuildPrefillChunkMetadataKernel.kernel": prefill_chunk,
                f"{_MLA}.sparse_swa.ComputeSWAIndicesAndLensKernel.kernel": nothing,
                f"{_MLA}.sparse_swa.ComputePrefillMetadataKernel.kernel": nothing,
            }
        )
        _complete_schedule()

    both._conformance = True  # type: ignore[attr-defined]
    platform.register_triton_kernel_overrides = classmethod(both)
    return [
        "5 index kernels that exist in Triton alone run as PyTorch (2 of them as nothing: their results are not read)",
        "build_tile_scheduler also answers for c1a and c2a (0.32: KeyError on the first step)",
    ]


def _complete_schedule():
    """The CPU's tile schedule names three kinds of layer, its reader asks for five; all of them are None."""
    builder = importlib.import_module("vllm.models.deepseek_v4.cpu.cpu_mla").DeepseekV4CPUSparseSWAMetadataBuilder
    inner = builder.build_tile_scheduler
    builder.build_tile_scheduler = lambda self, tokens: {"c1a": None, "c2a": None} | inner(self, tokens)


def request_of_token(query_start_loc, output, num_reqs, num_mapped, num_tokens, **_):
    """output[t] = the request that token t belongs to; 0 from `num_mapped` on."""
    ends = query_start_loc[1 : num_reqs + 1].tolist()
    output[:num_tokens] = 0
    start = 0
    for request, end in enumerate(ends):
        output[start : min(end, num_mapped)] = request
        start = end


def compressed_slots(
    compressed_slot_mapping_ptr,
    slot_mapping_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    block_table_ptr,
    block_table_stride,
    block_size,
    dcp_world_size,
    cp_interleave,
    COMPRESS_RATIO,
    PAD_ID,
    TRITON_BLOCK_SIZE,
    **_,
):
    """A token that completes a compressed entry gets that entry's slot, every other one PAD_ID."""
    if dcp_world_size != 1:
        raise NotImplementedError("the harness's CPU plug-in knows no decode context parallelism")
    starts, lengths = query_start_loc_ptr.tolist(), seq_lens_ptr.tolist()
    for request, (first, last) in enumerate(pairwise(starts)):
        if first == last or request >= len(lengths):
            continue
        position = torch.arange(lengths[request] - (last - first), lengths[request])
        completes = ((position + 1) % COMPRESS_RATIO == 0) & (slot_mapping_ptr[first:last] != PAD_ID)
        entry = torch.where(completes, position // COMPRESS_RATIO, 0)
        slots = block_table_ptr[request][entry // block_size].long() * block_size + entry % block_size
        compressed_slot_mapping_ptr[first:last] = torch.where(completes, slots, PAD_ID)


def prefill_chunk(
    query_start_loc_ptr,
    uncompressed_seq_lens_ptr,
    cu_compressed_seq_lens_ptr,
    row_start_cu_compressed_seq_lens_ptr,
    token_to_seq_ptr,
    cu_compressed_seq_len_ks_ptr,
    cu_compressed_seq_len_ke_ptr,
    query_slice_start,
    query_slice_stop,
    DCP_RANK,
    DCP_WORLD,
    DCP_INTERLEAVE,
    BLOCK_SIZE,
    COMPRESS_RATIO,
    **_,
):
    """For the queries of a slice: where their request's keys start and end; for each key: its request."""
    if DCP_WORLD != 1:
        raise NotImplementedError("the harness's CPU plug-in knows no decode context parallelism")
    starts, keys = query_start_loc_ptr.tolist(), cu_compressed_seq_lens_ptr.tolist()
    bases, lengths = row_start_cu_compressed_seq_lens_ptr.tolist(), uncompressed_seq_lens_ptr.tolist()
    for request in range(len(keys) - 1):
        first, last = starts[request], starts[request + 1]
        low, high = max(first, query_slice_start), min(last, query_slice_stop)
        if low < high:
            row = torch.arange(low, high)
            seen = (lengths[request] - (last - first) + 1 + row - first) // COMPRESS_RATIO
            where = slice(low - query_slice_start, high - query_slice_start)
            cu_compressed_seq_len_ks_ptr[where] = bases[request]
            cu_compressed_seq_len_ke_ptr[where] = (bases[request] + seen).to(cu_compressed_seq_len_ke_ptr.dtype)
        token_to_seq_ptr[keys[request] : keys[request + 1]] = request


def nothing(*_, **__):
    """Launched, its result not read by DeepseekV4CPUAttention."""
