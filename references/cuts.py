"""How each checkpoint tensor of DeepSeek-V4 is cut over tensor-parallel ranks, in its own stored units.

Source: the TP3 audit of vLLM 45c1582e9, sections `TP3 shape plan` and `Loader`; sizes from `plan.py`. A scale is cut
where its weight is: offset and size are rounded together, so a boundary inside a block or group is an error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from references import plan

#: Elements along a side of an FP8 block, and elements that share an MXFP4 scale.
BLOCK, GROUP = 128, 32
#: module of a layer -> (axis of the weight that is cut, planned axis)
MODULES = {
    "attn.wq_b": (0, "queries"),
    "attn.wo_a": (0, "groups"),
    "attn.wo_b": (1, "groups"),
    "attn.attn_sink": (0, "heads"),
    "ffn.shared_experts.w1": (0, "shared"),
    "ffn.shared_experts.w3": (0, "shared"),
    "ffn.shared_experts.w2": (1, "shared"),
    "ffn.experts.*.w1": (0, "routed"),
    "ffn.experts.*.w3": (0, "routed"),
    "ffn.experts.*.w2": (1, "routed"),
}
TOP = {"embed.weight": (0, "vocab"), "head.weight": (0, "vocab")}


class Cut(NamedTuple):
    """Stored units [start, stop) of `axis` are the rank's, whose share is `share` units of `unit` elements each."""

    axis: int
    start: int
    stop: int
    share: int
    unit: int


def cut(config: dict[str, Any], tp: int, rank: int, kind: str, dtype: str, virtual: bool | None = None) -> Cut | None:
    """The rank's part of a tensor of that kind (`layers.*.attn.wq_b.scale`); None where every rank holds it whole.
    `virtual`: are heads given out as virtual TP does it? By default where it is needed.

    Raises ValueError where a rank's boundary falls inside a stored unit, or no plan exists.
    """
    found = place(kind)
    if found is None:
        return None
    axis, planned = found
    size, share = axis_elements(config, tp, planned, virtual)
    unit = elements(kind, dtype, axis)
    first, last = min(rank * share, size), min((rank + 1) * share, size)
    for what, element in (("begins", first), ("ends", last), ("is", share)):
        if element % unit and element != size:
            raise ValueError(f"{kind}: rank {rank}'s share {what} {element}, inside a unit of {unit} elements")
    start = first // unit if first < last else -(-size // unit)  # past the end: no unit, not the last one again
    return Cut(axis, start, max(start, -(-last // unit)), -(-share // unit), unit)


def place(kind: str) -> tuple[int, str] | None:
    """(axis, planned axis) of a kind of tensor."""
    if kind in TOP:
        return TOP[kind]
    _, star, module = kind.partition(".*.")
    return MODULES.get(module.removesuffix(".weight").removesuffix(".scale")) if star else None


def elements(kind: str, dtype: str, axis: int) -> int:
    """Elements in one stored unit along the axis that is cut."""
    routed_fp4 = ".experts." in kind and dtype in ("I8", "F8_E8M0")
    if kind.endswith(".scale"):
        if routed_fp4:
            return GROUP if axis == 1 else 1
        return BLOCK
    return 2 if routed_fp4 and axis == 1 else 1


def axis_elements(config: dict[str, Any], tp: int, planned: str, virtual: bool | None = None) -> tuple[int, int]:
    """(elements in the checkpoint, elements of one rank) of a planned axis, counted in a weight's rows or columns."""
    heads, groups = config["num_attention_heads"], config["o_groups"]
    intermediate = config["moe_intermediate_size"]
    if virtual is None:
        virtual = bool(plan.unshared(heads, groups, intermediate, tp))
    if planned == "heads":
        return heads, plan.attention_heads(heads, tp, virtual).per_rank
    if planned == "queries":
        return heads * config["head_dim"], plan.attention_heads(heads, tp, virtual).per_rank * config["head_dim"]
    if planned == "groups":
        each = config["o_lora_rank"]
        return groups * each, plan.output_groups(groups, heads, tp, virtual).per_rank * each
    if planned == "shared":
        size = intermediate * config["n_shared_experts"]
        return size, plan.shared_intermediate(size, tp).per_rank
    if planned == "routed":
        return intermediate, plan.routed_intermediate(intermediate, tp).per_rank
    return config["vocab_size"], plan.vocabulary(config["vocab_size"], tp).per_rank
