"""What vLLM's own attention classes hand to their kernels on a pretended capability: decode alone, and nothing runs."""

import contextlib
import importlib
import inspect
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

from .problems import Unsupported, refusals, stacks_words

_WIDTH, _ROW = 512, 584
_MODULES = ("vllm.models.deepseek_v4.nvidia.flashmla", "vllm.models.deepseek_v4.nvidia.flashinfer_sparse")
_SPARSE = "trtllm_batch_decode_sparse_mla_dsv4"


def attention_calls(heads, tokens, ratio, capability, window, entries):
    """[(function, {argument: [dtype, shape, contiguous]}, {argument: text}, refused)] of one decode."""
    from .fake_platform import pretend

    made = {9: _flashmla, 10: _one_table, 12: _packed}.get(capability[0])
    if made is None:
        raise Unsupported(f"vLLM has no DeepSeek-V4 attention for capability {capability[0]}.{capability[1]}")
    for name in _MODULES:  # while there is no device: as a pretended CUDA they would ask the compiled library
        importlib.import_module(name)
    calls: list[tuple] = []
    with pretend(capability), refusals("decode"):
        made(_Given(heads, tokens, ratio, window, entries), calls)
    return calls


class _Given:
    """A batch of zeros as vLLM's layers hold it: q with the rank's heads, caches of three pages, slots and lengths."""

    def __init__(self, heads, tokens, ratio, window, entries):
        self.heads, self.tokens, self.ratio, self.window, self.entries = heads, tokens, ratio, window, entries

    def q(self, heads):
        import torch

        return torch.zeros(self.tokens, heads, _WIDTH, dtype=torch.bfloat16)

    def cache(self, page, packed):
        import torch

        if not packed:
            return torch.zeros(3, page, _WIDTH, dtype=torch.bfloat16)
        size = -(-page * _ROW // 576) * 576
        return torch.zeros(3, size, dtype=torch.uint8).as_strided((3, page, _ROW), (size, _ROW, 1))

    def compressed(self, packed):
        return self.cache(256 // self.ratio, packed) if self.ratio else None

    def numbers(self, *shape):
        import torch

        return torch.ones(shape, dtype=torch.int32)

    def swa(self):
        """SWA metadata: each token a request of one query."""
        import torch
        from vllm.v1.attention.backends.mla.sparse_swa import DeepseekSparseSWAMetadata

        start = torch.arange(self.tokens + 1, dtype=torch.int32)
        found = DeepseekSparseSWAMetadata(
            block_table=self.numbers(self.tokens, 3),
            slot_mapping=None,
            block_size=64,
            seq_lens=self.numbers(self.tokens),
            query_start_loc=start,
            query_start_loc_cpu=start,
            is_valid_token=torch.ones(self.tokens, dtype=torch.bool),
            token_to_req_indices=start[:-1],
            decode_swa_indices=self.numbers(self.tokens, 1, self.window),
            decode_swa_lens=self.numbers(self.tokens),
            num_decodes=self.tokens,
            num_decode_tokens=self.tokens,
        )
        newer = {"decode_swa_width": self.window}
        for name in ("tile_sched_swaonly", "tile_sched_c4a", "tile_sched_c128a"):
            newer[name] = SimpleNamespace()
        for name, value in newer.items():
            if hasattr(found, name):
                setattr(found, name, value)
        return found

    def metadata(self):
        """Of the compressed entries; none without a ratio."""
        if not self.ratio:
            return None
        return SimpleNamespace(
            block_size=256,
            block_table=self.numbers(self.tokens, 3),
            c128a_global_decode_topk_indices=self.numbers(self.tokens, 1, self.entries),
            c128a_decode_topk_lens=self.numbers(self.tokens),
        )

    def layer(self, kind, cache, **more):
        import torch

        padded = kind.get_padded_num_q_heads(self.heads)
        return padded, SimpleNamespace(
            compress_ratio=max(self.ratio, 1),
            scale=_WIDTH**-0.5,
            attn_sink=torch.zeros(padded),
            padded_heads=padded,
            swa_cache_layer=SimpleNamespace(kv_cache=cache),
            topk_indices_buffer=self.numbers(self.tokens, self.entries),
            kv_cache_torch_dtype=cache.dtype,
            window_size=self.window,
            **more,
        )

    def found_entries(self, *_, **__):
        """In place of the Triton kernel that maps a request's entries to slots."""
        return self.numbers(self.tokens, self.entries), self.numbers(self.tokens)


def _flashmla(given, calls):
    """DeepseekV4FlashMLAAttention._forward_decode."""
    module = importlib.import_module(_MODULES[0])
    kind, cache = module.DeepseekV4FlashMLAAttention, given.cache(64, True)
    padded, layer = given.layer(kind, cache)
    q = given.q(padded)  # the fused insert has padded it
    noting = _noting(_flashmla_function(), calls)
    with _replaced(module, flash_mla_with_kvcache=noting, compute_global_topk_indices_and_lens=given.found_entries):
        kind._forward_decode(
            layer,
            q=q,
            kv_cache=given.compressed(True),
            swa_metadata=given.swa(),
            attn_metadata=given.metadata(),
            swa_only=not given.ratio,
            output=q.clone(),
        )


def _flashmla_function():
    """FlashMLA's Python function; its extension needs a driver, and is not called: an empty module stands in."""
    name = "vllm._flashmla_C"
    absent = name not in sys.modules
    if absent:
        sys.modules[name] = ModuleType(name)
    try:
        return importlib.import_module("vllm.third_party.flashmla.flash_mla_interface").flash_mla_with_kvcache
    except ImportError as error:
        raise Unsupported(f"this vLLM has no FlashMLA: {stacks_words(error)}") from error
    finally:
        if absent:
            del sys.modules[name]


def _flashinfer_function():
    try:
        return getattr(importlib.import_module("flashinfer.mla"), _SPARSE)
    except (ImportError, AttributeError) as error:
        words = f"no flashinfer with {_SPARSE} beside this vLLM: {stacks_words(error)}; 0.7.2 has it"
        raise Unsupported(f"{words}: pip install flashinfer-python there") from error


def _packed(given, calls):
    """DeepseekV4FlashInferSM120Attention._forward_decode."""
    module = importlib.import_module(_MODULES[1])
    kind, cache = module.DeepseekV4FlashInferSM120Attention, given.cache(64, True)
    padded, layer = given.layer(kind, cache, _get_workspace=_workspace, _as_sparse_cache=kind._as_sparse_cache)
    layer._prepare_query = lambda q, output: kind._prepare_query(layer, q, output)
    with _noted(module, given, calls):
        kind._forward_decode(
            layer,
            q=given.q(given.heads),
            kv_cache=given.compressed(True),
            swa_metadata=given.swa(),
            attn_metadata=given.metadata(),
            swa_only=not given.ratio,
            output=given.q(padded),
        )


def _one_table(given, calls):
    """DeepseekV4FlashInferMLAAttention._forward, its table of slots as its Triton kernel shapes it."""
    import torch

    module = importlib.import_module(_MODULES[1])
    kind, cache = module.DeepseekV4FlashInferMLAAttention, given.cache(64, False)
    padded, layer = given.layer(kind, cache)
    layer._build_sparse_index_metadata = lambda **named: kind._build_sparse_index_metadata(layer, **named)
    width = given.window + (given.entries if given.ratio else 0)

    def table(*_, **__):
        return given.numbers(given.tokens, width), torch.full((given.tokens,), width, dtype=torch.int32)

    with _noted(module, given, calls), _replaced(module, build_flashinfer_mixed_sparse_indices=table):
        kind._forward(
            layer,
            q=given.q(given.heads),
            kv_cache=given.compressed(False),
            swa_k_cache=cache,
            swa_metadata=given.swa(),
            attn_metadata=given.metadata(),
            swa_only=not given.ratio,
            output=given.q(padded),
        )


def _workspace(device):
    import torch

    return torch.zeros(16, dtype=torch.uint8, device=device)


@contextlib.contextmanager
def _noted(module, given, calls):
    noting = _noting(_flashinfer_function(), calls)
    named = {f"flashinfer_{_SPARSE}": noting, "_get_flashinfer_dsv4_workspace": _workspace}
    with _replaced(module, **named, compute_global_topk_indices_and_lens=given.found_entries):
        yield


@contextlib.contextmanager
def _replaced(module, **named):
    with contextlib.ExitStack() as stack:
        for name, value in named.items():
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def _noting(function, calls):
    """Binds a call to the function's own signature and notes it down."""
    import torch

    signature, name = inspect.signature(function), function.__name__

    def call(*positional, **named):
        try:
            given = signature.bind(*positional, **named).arguments
        except TypeError as error:
            calls.append((name, {}, {}, str(error)))
            return named.get("out"), None
        tensors = {
            key: [str(value.dtype).removeprefix("torch."), list(value.shape), value.is_contiguous()]
            for key, value in given.items()
            if isinstance(value, torch.Tensor)
        }
        calls.append((name, tensors, {k: str(v)[:80] for k, v in given.items() if k not in tensors}, ""))
        return given.get("out"), None

    return call
