"""The layout of a gpt-oss checkpoint, less the experts' MXFP4 blocks, and how each tensor is cut over ranks.

Source: the published openai/gpt-oss-120b and its config.json. Attention is plain: whole query heads and key/value heads
to a rank, every projection with a bias. Gate and up rows of an expert lie in turn, so a channel is two elements of
their bias, and a rank has the channels whose scale groups it has. The down bias is added once: rank 0 holds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from references import plan
from references.checkpoint import Tensor
from references.cuts import Cut

MODEL_TYPE = "gpt_oss"
#: module of a layer -> (axis that is cut, what is shared out)
_PLACES = {
    "self_attn.q_proj.weight": (0, "queries"),
    "self_attn.q_proj.bias": (0, "queries"),
    "self_attn.k_proj.weight": (0, "keys"),
    "self_attn.k_proj.bias": (0, "keys"),
    "self_attn.v_proj.weight": (0, "keys"),
    "self_attn.v_proj.bias": (0, "keys"),
    "self_attn.o_proj.weight": (1, "queries"),
    "self_attn.sinks": (0, "heads"),
    "mlp.experts.gate_up_proj_bias": (1, "pairs"),
    "mlp.experts.down_proj_bias": (1, "once"),
}
_TOP = {"model.embed_tokens.weight": (0, "vocab"), "lm_head.weight": (0, "vocab")}


def tensors(config: dict[str, Any], layers: Iterable[int]) -> dict[str, Tensor]:
    """Name -> Tensor, BF16 all of them. Raises ValueError where the config is no gpt-oss's."""
    if config.get("model_type") != MODEL_TYPE:
        raise ValueError(f"model_type is {config.get('model_type')!r:.40}; this is the layout of {MODEL_TYPE}")
    hidden, vocab, experts = config["hidden_size"], config["vocab_size"], config["num_local_experts"]
    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, size in (("q", heads * dim), ("k", kv * dim), ("v", kv * dim)):
        layer |= {f"self_attn.{name}_proj.weight": (size, hidden), f"self_attn.{name}_proj.bias": (size,)}
    layer |= {"self_attn.o_proj.weight": (hidden, heads * dim), "self_attn.o_proj.bias": (hidden,)}
    layer |= {"self_attn.sinks": (heads,), "mlp.router.weight": (experts, hidden), "mlp.router.bias": (experts,)}
    layer["mlp.experts.gate_up_proj_bias"] = (experts, 2 * config["intermediate_size"])
    layer["mlp.experts.down_proj_bias"] = (experts, hidden)
    top: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden)}
    found = {name: Tensor("BF16", shape, name) for name, shape in (top | {"model.norm.weight": (hidden,)}).items()}
    for index in layers:
        for name, shape in layer.items():
            found[f"model.layers.{index}.{name}"] = Tensor("BF16", shape, f"model.layers.*.{name}")
    return found


def blocks(config: dict[str, Any], layers: Iterable[int]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the experts' MXFP4 blocks (experts, rows, groups, 16 bytes) and scales, U8 all of them."""
    experts, hidden, size = config["num_local_experts"], config["hidden_size"], config["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {}
    for index in layers:
        for name, rows, columns in (("gate_up_proj", 2 * size, hidden), ("down_proj", hidden, size)):
            scales = (experts, rows, columns // 32)
            prefix = f"model.layers.{index}.mlp.experts.{name}"
            found |= {f"{prefix}_blocks": (*scales, 16), f"{prefix}_scales": scales}
    return found


def place(kind: str) -> tuple[int, str] | None:
    """(axis, what is shared out) of a kind of tensor; None where every rank holds it whole."""
    return _TOP.get(kind) or _PLACES.get(kind.partition(".*.")[2])


def cut(config: dict[str, Any], tp: int, rank: int, kind: str) -> Cut | None:
    """The rank's part of a tensor of that kind. Raises ValueError where ranks cannot have whole heads."""
    found = place(kind)
    if found is None:
        return None
    axis, what = found
    if what == "once":
        size = config["hidden_size"]
        return Cut(axis, 0, size if rank == 0 else 0, size, 1)
    size, share = _shared_out(config, tp, what)
    return Cut(axis, min(rank * share, size), min((rank + 1) * share, size), share, 1)


def _shared_out(config: dict[str, Any], tp: int, what: str) -> tuple[int, int]:
    """(elements in all, elements of one rank)."""
    if what == "vocab":
        return config["vocab_size"], plan.vocabulary(config["vocab_size"], tp).per_rank
    if what == "pairs":
        size = config["intermediate_size"]
        return 2 * size, 2 * plan.routed_intermediate(size, tp).per_rank
    heads = config["num_key_value_heads" if what == "keys" else "num_attention_heads"]
    if heads % tp:
        raise ValueError(f"{heads} heads cannot be shared out whole among {tp} ranks")
    each = 1 if what == "heads" else config["head_dim"]
    return heads * each, heads // tp * each
