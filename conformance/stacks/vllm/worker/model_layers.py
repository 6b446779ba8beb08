"""One rank's real model, built without memory (meta device), and the sizes that its layers have.

Nothing here divides an axis by tp: per-rank sizes come from parameter shapes, padded ones from what the layers
say of themselves. An axis that cannot be read is left out, with a note.
"""

from . import building, routed, stubs
from .problems import Unsupported, stacks_words


class Built:
    """{axis: (original, padded, per rank)}, {unpadded axis: size}, notes."""

    def __init__(self):
        self.axes = {}
        self.unpadded = {}
        self.notes = []


def read(config, tp, capability, moe, rank=0):
    """Sizes of rank `rank`'s layers, of a model shortened to the layers that show every axis."""
    built = Built()
    text = config.model_config.hf_text_config
    indexed = bool(getattr(text, "index_n_heads", None))
    try:
        model = _shortest(config, tp, capability, moe, rank, indexed)
    except Exception as error:  # this machine cannot build it: say so, and give no number
        built.notes.append(f"the model's layers cannot be built here: {stacks_words(error)}")
        return built
    built.notes.append(f"{stubs.NOTE}; {len(model.model.layers)} layers of rank {rank}")
    for name, reader in _AXES.items():
        _try(built, name, built.axes, lambda reader=reader: tuple(map(int, reader(model, text))))
    for name, reader in _UNPADDED.items():
        if name != "index_heads" or indexed:
            _try(built, name, built.unpadded, lambda reader=reader: int(reader(model, text)))
    return built


def _shortest(config, tp, capability, moe, rank, indexed):
    """The model with as few layers as show an indexer, if the configuration has one (8 layers at most)."""
    total = config.model_config.hf_text_config.num_hidden_layers
    for depth in range(min(2, total), min(8, total) + 1):
        model = building.build(config, tp, capability, moe, rank, depth)
        if not indexed or _indexers(model):
            break
    return model


def _try(built, name, into, reader):
    try:
        into[name] = reader()
    except Exception as error:  # another version's layers: the axis is missing, and the note says why
        built.notes.append(f"{name} cannot be read off the layers: {stacks_words(error)}")


def _whole(rows, unit):
    """How many units of that many rows a layer holds; a fraction of one is no size of an axis."""
    if rows % unit:
        raise Unsupported(f"{rows} rows are no whole number of {unit}")
    return rows // unit


def _last(model):
    return model.model.layers[-1]


def _experts(model):
    layer = _last(model)
    experts = (layer.ffn if hasattr(layer, "ffn") else layer.mlp).experts
    return getattr(experts, "routed_experts", experts)


def _heads(model, text):
    layer = _last(model).attn
    original = getattr(text, "original_num_attention_heads", text.num_attention_heads)
    return original, layer.n_heads, _whole(layer.wq_b.weight.shape[0], layer.head_dim)


def _groups(model, text):
    layer = _last(model).attn
    original = getattr(text, "original_o_groups", text.o_groups)
    return original, layer.n_groups, _whole(layer.wo_a.weight.shape[0], layer.o_lora_rank)


def _routed(model, text):
    if text.model_type == routed.GPT_OSS:
        raise Unsupported("gpt-oss's load_weights cuts experts by scale groups, and no layer holds that share")
    experts = _experts(model)
    width = experts.moe_config
    original = getattr(text, "original_moe_intermediate_size", text.moe_intermediate_size)
    return original, width.intermediate_size, width.intermediate_size_per_partition_unpadded


def _shared(model, text):
    down = _last(model).ffn.shared_experts.down_proj
    original = getattr(text, "original_moe_intermediate_size", text.moe_intermediate_size) * text.n_shared_experts
    return original, down.input_size, down.weight.shape[1]


def _embedding(model):
    return getattr(model.model, "embed_tokens", None) or model.model.embedding


def _vocab(model, text):
    embedding, head = _embedding(model), model.lm_head
    sizes = [(e.org_vocab_size, e.num_embeddings_padded, e.weight.shape[0]) for e in (embedding, head)]
    if sizes[0] != sizes[1]:
        raise Unsupported(f"embedding {sizes[0]} and output head {sizes[1]} differ")
    return sizes[0]


def _kv_heads(model, text):
    layer = _last(model).attn
    if hasattr(layer, "qkv_proj"):
        return layer.qkv_proj.total_num_kv_heads
    return _whole(layer.fused_wqa_wkv.weight.shape[0] - layer.q_lora_rank, layer.head_dim)


def _indexers(model):
    indexers = [getattr(getattr(layer, "attn", None), "indexer", None) for layer in model.model.layers]
    return [indexer for indexer in indexers if indexer is not None]


def _index_heads(model, text):
    indexers = _indexers(model)
    if not indexers:
        raise Unsupported("no layer built has an indexer")
    return _whole(indexers[0].wq_b.weight.shape[0], indexers[0].head_dim)


_AXES = {"heads": _heads, "groups": _groups, "routed": _routed, "shared": _shared, "vocab": _vocab}
_UNPADDED = {
    "kv_heads": _kv_heads,
    "hidden_size": lambda model, text: _embedding(model).weight.shape[1],
    "experts": lambda model, text: _experts(model).w13_weight.shape[0],
    "top_k": lambda model, text: _experts(model).top_k,
    "index_heads": _index_heads,
}
