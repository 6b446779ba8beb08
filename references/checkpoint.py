"""The layout of a DeepSeek-V4 checkpoint: each tensor's name, safetensors dtype and shape as a formula of config.json.

Source: the published DeepSeek-V4-Flash (69,187 tensors; names and scale types as released, not as converted by
transformers), held against vLLM's `deepseek_v4/nvidia/model.py` and `mtp.py`. Linear layers are FP8 in blocks of
128 x 128, rows first; `expert_dtype` fp4 (the default) packs two routed elements into an I8 with one E8M0 per 32,
fp8 (the Base models) keeps routed experts in blocks too, and then every scale is F32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

#: Elements along each side of an FP8 block, and elements that share an MXFP4 scale.
BLOCK, GROUP = 128, 32


class Tensor(NamedTuple):
    """`dtype` as safetensors names it (BF16, F32, F8_E4M3, F8_E8M0, I8, I64); `shape` in stored elements.

    `kind` is the name with numbers starred: `layers.*.ffn.experts.*.w1.weight`.
    """

    dtype: str
    shape: tuple[int, ...]
    kind: str


class Layer(NamedTuple):
    """What decides which tensors a layer has."""

    ratio: int  #: compression: 0 (none), 4 (with indexer) or 128
    hashed: bool  #: routed by token id instead of by a learned bias
    draft: bool  #: of the multi-token-prediction module


Shape = Callable[[SimpleNamespace], tuple[int, ...]]
Row = tuple[str, str, Callable[[Layer], Any], Shape]


def _every(layer: Layer) -> bool:
    return True


# name, storage, which layers have it, shape in elements (for FP8 and FP4 the weight's; scales follow from it)
TOP: tuple[Row, ...] = (
    ("embed.weight", "BF16", _every, lambda c: (c.vocab, c.hidden)),
    ("head.weight", "BF16", _every, lambda c: (c.vocab, c.hidden)),
    ("norm.weight", "BF16", _every, lambda c: (c.hidden,)),
    ("hc_head_fn", "F32", _every, lambda c: (c.hc, c.hc * c.hidden)),
    ("hc_head_base", "F32", _every, lambda c: (c.hc,)),
    ("hc_head_scale", "F32", _every, lambda c: (1,)),
)
LAYER: tuple[Row, ...] = (
    ("attn_norm.weight", "BF16", _every, lambda c: (c.hidden,)),
    ("ffn_norm.weight", "BF16", _every, lambda c: (c.hidden,)),
    ("hc_attn_fn", "F32", _every, lambda c: ((2 + c.hc) * c.hc, c.hc * c.hidden)),
    ("hc_attn_base", "F32", _every, lambda c: ((2 + c.hc) * c.hc,)),
    ("hc_attn_scale", "F32", _every, lambda c: (3,)),
    ("hc_ffn_fn", "F32", _every, lambda c: ((2 + c.hc) * c.hc, c.hc * c.hidden)),
    ("hc_ffn_base", "F32", _every, lambda c: ((2 + c.hc) * c.hc,)),
    ("hc_ffn_scale", "F32", _every, lambda c: (3,)),
    ("attn.wq_a", "FP8", _every, lambda c: (c.q_lora, c.hidden)),
    ("attn.q_norm.weight", "BF16", _every, lambda c: (c.q_lora,)),
    ("attn.wq_b", "FP8", _every, lambda c: (c.heads * c.head_dim, c.q_lora)),
    ("attn.wkv", "FP8", _every, lambda c: (c.head_dim, c.hidden)),
    ("attn.kv_norm.weight", "BF16", _every, lambda c: (c.head_dim,)),
    ("attn.wo_a", "FP8", _every, lambda c: (c.groups * c.o_lora, c.heads * c.head_dim // c.groups)),
    ("attn.wo_b", "FP8", _every, lambda c: (c.hidden, c.groups * c.o_lora)),
    ("attn.attn_sink", "F32", _every, lambda c: (c.heads,)),
    ("attn.compressor.ape", "F32", lambda y: y.ratio == 4, lambda c: (4, 2 * c.head_dim)),
    ("attn.compressor.wkv.weight", "BF16", lambda y: y.ratio == 4, lambda c: (2 * c.head_dim, c.hidden)),
    ("attn.compressor.wgate.weight", "BF16", lambda y: y.ratio == 4, lambda c: (2 * c.head_dim, c.hidden)),
    ("attn.compressor.ape", "F32", lambda y: y.ratio == 128, lambda c: (128, c.head_dim)),
    ("attn.compressor.wkv.weight", "BF16", lambda y: y.ratio == 128, lambda c: (c.head_dim, c.hidden)),
    ("attn.compressor.wgate.weight", "BF16", lambda y: y.ratio == 128, lambda c: (c.head_dim, c.hidden)),
    ("attn.compressor.norm.weight", "BF16", lambda y: y.ratio, lambda c: (c.head_dim,)),
    ("attn.indexer.wq_b", "FP8", lambda y: y.ratio == 4, lambda c: (c.index_heads * c.index_dim, c.q_lora)),
    ("attn.indexer.weights_proj.weight", "BF16", lambda y: y.ratio == 4, lambda c: (c.index_heads, c.hidden)),
    ("attn.indexer.compressor.ape", "F32", lambda y: y.ratio == 4, lambda c: (4, 2 * c.index_dim)),
    ("attn.indexer.compressor.wkv.weight", "BF16", lambda y: y.ratio == 4, lambda c: (2 * c.index_dim, c.hidden)),
    ("attn.indexer.compressor.wgate.weight", "BF16", lambda y: y.ratio == 4, lambda c: (2 * c.index_dim, c.hidden)),
    ("attn.indexer.compressor.norm.weight", "BF16", lambda y: y.ratio == 4, lambda c: (c.index_dim,)),
    ("ffn.gate.weight", "BF16", _every, lambda c: (c.experts, c.hidden)),
    ("ffn.gate.tid2eid", "I64", lambda y: y.hashed, lambda c: (c.vocab, c.top_k)),
    ("ffn.gate.bias", "F32", lambda y: not y.hashed, lambda c: (c.experts,)),
    ("e_proj", "FP8", lambda y: y.draft, lambda c: (c.hidden, c.hidden)),
    ("h_proj", "FP8", lambda y: y.draft, lambda c: (c.hidden, c.hidden)),
    ("enorm.weight", "BF16", lambda y: y.draft, lambda c: (c.hidden,)),
    ("hnorm.weight", "BF16", lambda y: y.draft, lambda c: (c.hidden,)),
    ("norm.weight", "BF16", lambda y: y.draft, lambda c: (c.hidden,)),
    ("hc_head_fn", "F32", lambda y: y.draft, lambda c: (c.hc, c.hc * c.hidden)),
    ("hc_head_base", "F32", lambda y: y.draft, lambda c: (c.hc,)),
    ("hc_head_scale", "F32", lambda y: y.draft, lambda c: (1,)),
)
#: Of all shared experts together (absent where there are none), and of one routed expert.
SHARED: tuple[Row, ...] = (
    ("ffn.shared_experts.w1", "FP8", _every, lambda c: (c.shared * c.intermediate, c.hidden)),
    ("ffn.shared_experts.w2", "FP8", _every, lambda c: (c.hidden, c.shared * c.intermediate)),
    ("ffn.shared_experts.w3", "FP8", _every, lambda c: (c.shared * c.intermediate, c.hidden)),
)
ROUTED: tuple[Row, ...] = (
    ("w1", "ROUTED", _every, lambda c: (c.intermediate, c.hidden)),
    ("w2", "ROUTED", _every, lambda c: (c.hidden, c.intermediate)),
    ("w3", "ROUTED", _every, lambda c: (c.intermediate, c.hidden)),
)
_CONFIG = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "head_dim": "head_dim",
    "q_lora": "q_lora_rank",
    "o_lora": "o_lora_rank",
    "groups": "o_groups",
    "index_heads": "index_n_heads",
    "index_dim": "index_head_dim",
    "hc": "hc_mult",
    "experts": "n_routed_experts",
    "top_k": "num_experts_per_tok",
    "intermediate": "moe_intermediate_size",
}
RATIOS = (0, 4, 128)


def tensors(
    config: dict[str, Any], layers: Iterable[int] | None = None, experts: int | None = None, draft: bool = True
) -> dict[str, Tensor]:
    """Name -> Tensor of the whole checkpoint; of some `layers` and the first `experts` alone, if given.

    Tensors outside layers are always there. `draft`: with the `mtp.*` modules that config.json counts.
    Raises ValueError, naming the key, where the config has no such layout (or is not DeepSeek-V4's).
    """
    c = _dimensions(config)
    depth = _whole(config, "num_hidden_layers")
    chosen = range(depth) if layers is None else sorted({*layers} & {*range(depth)})
    found = _named("", "", TOP, Layer(0, False, False), c)
    for index in chosen:
        found |= _layer(f"layers.{index}.", "layers.*.", layer(config, index), c, experts)
    for index in range(_whole(config, "num_nextn_predict_layers", lowest=0, default=0) if draft else 0):
        found |= _layer(f"mtp.{index}.", "mtp.*.", layer(config, depth + index), c, experts)
    return found


def layer(config: dict[str, Any], index: int) -> Layer:
    """What kind of layer this is; draft modules are numbered on after the last layer."""
    ratios = config.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) <= index:
        got = f"{len(ratios)} entries" if isinstance(ratios, list) else "no list"
        raise ValueError(f"compress_ratios is {got}; one for each layer, also for layer {index}, was due")
    ratio = ratios[index]
    if isinstance(ratio, bool) or ratio not in RATIOS or not isinstance(ratio, int):
        raise ValueError(f"compress_ratios[{index}] is {ratio!r:.40}; one of {RATIOS} was due")
    hashed = index < _whole(config, "num_hash_layers", lowest=0, default=0)
    return Layer(ratio, hashed, index >= _whole(config, "num_hidden_layers"))


def kind(name: str) -> str:
    """The name with its numbers starred, as `Tensor.kind`: of any name, also of one that no table has."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _layer(prefix: str, starred: str, what: Layer, c: SimpleNamespace, experts: int | None) -> dict[str, Tensor]:
    found = _named(prefix, starred, LAYER + (SHARED if c.shared else ()), what, c)
    one = _named("", f"{starred}ffn.experts.*.", ROUTED, what, c)
    for expert in range(c.experts if experts is None else min(experts, c.experts)):
        found |= {f"{prefix}ffn.experts.{expert}.{name}": tensor for name, tensor in one.items()}
    return found


def _named(prefix: str, starred: str, rows: tuple[Row, ...], what: Layer, c: SimpleNamespace) -> dict[str, Tensor]:
    return {
        prefix + name + suffix: Tensor(dtype, shape, starred + name + suffix)
        for name, storage, has, formula in rows
        if has(what)
        for suffix, dtype, shape in stored(storage, formula(c), c.fp4)
    }


def stored(storage: str, shape: tuple[int, ...], fp4: bool) -> list[tuple[str, str, tuple[int, ...]]]:
    """(suffix, dtype, shape) of what a row of the table is stored as: one tensor, or a weight and its scales."""
    if storage == "ROUTED":
        storage = "FP4" if fp4 else "FP8"
    if storage == "FP4":
        rows, cols = shape
        return [(".weight", "I8", (rows, cols // 2)), (".scale", "F8_E8M0", (rows, cols // GROUP))]
    if storage == "FP8":
        blocks = tuple(-(-size // BLOCK) for size in shape)
        return [(".weight", "F8_E4M3", shape), (".scale", "F8_E8M0" if fp4 else "F32", blocks)]
    return [("", storage, shape)]


def _dimensions(config: dict[str, Any]) -> SimpleNamespace:
    if config.get("model_type") != "deepseek_v4":
        raise ValueError(f"model_type is {config.get('model_type')!r:.40}; this is the layout of deepseek_v4")
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict) or quantization.get("weight_block_size") != [BLOCK, BLOCK]:
        raise ValueError(f"quantization_config.weight_block_size is not [{BLOCK}, {BLOCK}], as published")
    expert_dtype = config.get("expert_dtype", "fp4")
    if expert_dtype not in ("fp4", "fp8"):
        raise ValueError(f"expert_dtype is {expert_dtype!r:.40}; fp4 or fp8 was due")
    c = SimpleNamespace(**{short: _whole(config, key) for short, key in _CONFIG.items()})
    c.shared = _whole(config, "n_shared_experts", lowest=0, default=0)
    c.fp4 = expert_dtype == "fp4"
    if c.heads * c.head_dim % c.groups:
        raise ValueError(f"o_groups is {c.groups}; a divisor of {c.heads} heads of {c.head_dim} was due")
    for key, size in (("hidden_size", c.hidden), ("moe_intermediate_size", c.intermediate)):
        if c.fp4 and size % GROUP:
            raise ValueError(f"{key} is {size}; a multiple of {GROUP} (one MXFP4 scale) was due")
    return c


def _whole(config: dict[str, Any], key: str, lowest: int = 1, default: int | None = None) -> int:
    value = config.get(key, default)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value < 1 << 32:
        raise ValueError(f"{key} is {value!r:.40}; a whole number of at least {lowest} was due")
    return value
