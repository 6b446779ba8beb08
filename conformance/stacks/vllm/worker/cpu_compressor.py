"""DeepseekV4CPUCompressor with state of its own: what a request's earlier calls left is in its pages."""

from types import SimpleNamespace

from . import cpu_modules
from .sessions import Table

compressors = Table("compressor")
_STATE, _CACHE = "state", "cache"
#: Tokens of a page of state, by ratio. Source: vLLM's CompressorStateCache.
_PAGE = {4: 4, 128: 8}


class _State:
    """The module's own attributes, and pages of state that a request's tokens use in turn.

    A page comes back after more tokens than one call and one window hold: vLLM frees those behind the window.
    """

    def __init__(self, ratio, bias, norm, eps, requests):
        import torch

        self.overlap = ratio == 4
        columns = bias.shape[1]
        page = _PAGE[ratio]
        window = (1 + self.overlap) * ratio
        self.ring = (cpu_modules.TOKENS + window) // page + 2
        self.table = torch.arange(requests * self.ring, dtype=torch.int32).view(requests, self.ring)
        cache = torch.full((requests * self.ring, page, 2 * columns), torch.nan)
        self.module = SimpleNamespace(
            compress_ratio=ratio,
            overlap=self.overlap,
            coff=1 + self.overlap,
            head_dim=len(norm),
            ape=bias.clone(),
            _norm_weight_fp32=norm.clone(),
            rms_norm_eps=eps,
            state_cache=SimpleNamespace(prefix=_STATE, kv_cache=cache),
            k_cache_prefix=_CACHE,
        )
        self.page = page

    def metadata(self, positions, requests):
        """CompressorMetadata of a call: the block table as far as its positions reach."""
        import torch
        from vllm.models.deepseek_v4.compressor import CompressorMetadata

        reach = int(positions.max()) // self.page + 1 if len(positions) else 1
        table = self.table[:, torch.arange(reach) % self.ring]
        block = table[requests.long(), positions // self.page].long()
        return CompressorMetadata(
            block_table=table,
            slot_mapping=block * self.page + positions % self.page,
            block_size=self.page,
            token_to_req_indices=requests,
        )


def open_compressor(lent, ratio, eps, requests):
    cpu_modules.check()
    return compressors.add(_State(ratio, lent["bias"], lent["norm"], eps, requests))


def run_compressor(lent, session, tokens):
    """DeepseekV4CPUCompressor.forward."""
    import torch
    from vllm.models.deepseek_v4.cpu.cpu_compressor import DeepseekV4CPUCompressor

    state = compressors[session]
    cache = cpu_modules.pages(lent["pages"], tokens, 584)
    state.module._static_forward_context = {_CACHE: SimpleNamespace(kv_cache=cache)}
    metadata = {
        _STATE: state.metadata(lent["positions"], lent["requests"]),
        _CACHE: SimpleNamespace(slot_mapping=lent["slots"]),
    }
    scored = torch.cat([lent["kv"], lent["gate"]], dim=1)
    with cpu_modules.context(metadata):
        DeepseekV4CPUCompressor.forward(state.module, scored, lent["positions"], cpu_modules.rotation(lent["table"]))


def close_compressor(session):
    compressors.drop(session)
