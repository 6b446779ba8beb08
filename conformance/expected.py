"""What is due: the expected plan and maps, from `references/` alone."""

from __future__ import annotations

import msgspec

from conformance.geometry import ELEMENTS_PER_BYTE, SCALE_GROUP, Geometry
from conformance.provenance.boxes import Box, Origin, ProvenanceMap, Span, State
from conformance.stacks.protocols import SHARDS, Axis, ParameterInfo
from references import plan, shards


def axes(geometry: Geometry, tp: int, virtual: bool | None = None) -> dict[str, Axis]:
    """The due plan: heads and groups only for grouped output projections, shared only with shared experts.

    `virtual`: are heads given out as virtual TP does it? By default where it is needed.
    """
    g = geometry
    due = {"routed": (g.intermediate, plan.routed_intermediate(g.intermediate, tp))}
    if g.output_groups:
        virtual = bool(needs_virtual_tp(g, tp)) if virtual is None else virtual
        due["heads"] = (g.attention_heads, plan.attention_heads(g.attention_heads, tp, virtual))
        due["groups"] = (g.output_groups, plan.output_groups(g.output_groups, g.attention_heads, tp, virtual))
    if g.shared_experts:
        due["shared"] = (g.shared_intermediate, plan.shared_intermediate(g.shared_intermediate, tp))
    due["vocab"] = (g.vocab, plan.vocabulary(g.vocab, tp))
    return {name: Axis(size, share.padded, share.per_rank) for name, (size, share) in due.items()}


def needs_padding(geometry: Geometry, tp: int) -> list[str]:
    """Names of the axes that TP ranks cannot share without padding."""
    return [name for name, axis in axes(geometry, tp).items() if axis.padded != axis.original]


def needs_virtual_tp(geometry: Geometry, tp: int, expert_parallel: bool = False) -> list[str]:
    """Names of the axes that no stack can share out without virtual TP: tp does not divide them, or cuts a scale group.

    Heads and groups count for grouped output projections; rounding for a kernel asks for none. Expert parallelism deals
    routed experts out whole.
    """
    heads = geometry.attention_heads if geometry.output_groups else 0
    found = plan.unshared(heads, geometry.output_groups, geometry.intermediate, tp)
    return [name for name in found if not (expert_parallel and name == "routed")]


def unit(parameter: str) -> int:
    """Elements of the intermediate axis in one stored unit: a W13 row 1, a W2 byte 2, a W2 scale 32."""
    if parameter.startswith("w13"):
        return shards.ELEMENTS_PER_ROW
    return shards.ELEMENTS_PER_SCALE if parameter.endswith("_scale") else shards.ELEMENTS_PER_BYTE


def shard(geometry: Geometry, tp: int, rank: int, parameter: str, kernel_width: int) -> shards.Shard:
    """Raises ValueError where no right shard exists (see references.shards)."""
    per_rank = plan.routed_intermediate(geometry.intermediate, tp).per_rank
    return shards.shard(geometry.intermediate, per_rank, kernel_width, rank, unit(parameter))


def kernel_width(parameter: str, info: ParameterInfo) -> int:
    """Elements of the intermediate axis that the built parameter holds, from its shape alone."""
    if parameter.startswith("w13"):
        return info.rows // 2
    return info.cols * (SCALE_GROUP if parameter.endswith("_scale") else ELEMENTS_PER_BYTE)


def prepared_map(
    geometry: Geometry, tp: int, rank: int, parameter: str, info: ParameterInfo, experts: int
) -> ProvenanceMap:
    """The due map of what a [up; gate] kernel is given, by the (row, byte) that it reads: `experts_map` with the halves
    of W13 swapped. Raises ValueError as that does."""
    loaded = experts_map(geometry, tp, rank, parameter, info, experts)
    if not parameter.startswith("w13"):
        return loaded
    half = info.rows // 2
    boxes = []
    for box in loaded.boxes:
        move = -half if box.rows.start >= half else half
        boxes.append(msgspec.structs.replace(box, rows=Span(box.rows.start + move, box.rows.stop + move)))
    return msgspec.structs.replace(loaded, boxes=sorted(boxes, key=lambda b: (b.experts, b.rows, b.cols)))


def experts_map(
    geometry: Geometry, tp: int, rank: int, parameter: str, info: ParameterInfo, experts: int
) -> ProvenanceMap:
    """The due map of one rank's parameter as built (its own kernel width and hidden width).

    Raises ValueError where the parameter cannot hold the rank's shard.
    """
    due = shard(geometry, tp, rank, parameter, kernel_width(parameter, info))
    rows, cols = geometry.checkpoint_shape(parameter)
    boxes: list[Box] = []

    def add(row: Span, col: Span, origin: Origin | None) -> None:
        if len(row) and len(col):
            boxes.append(Box(Span(0, experts), row, col, State.SOURCE if origin else State.ZERO, origin))

    if parameter.startswith("w13"):
        if info.cols < cols:
            raise ValueError(f"{parameter} holds {info.cols} bytes a row; the checkpoint's {cols} do not fit")
        half = info.rows // 2
        for index, name in enumerate(SHARDS[parameter]):
            top = index * half
            logical = Span(top, top + due.size)
            add(logical, Span(0, cols), Origin(name, 0, due.start, 0))
            add(logical, Span(cols, info.cols), None)
            add(Span(top + due.size, top + half), Span(0, info.cols), None)
    else:
        if info.rows < rows:
            raise ValueError(f"{parameter} holds {info.rows} rows; the checkpoint's {rows} do not fit")
        add(Span(0, rows), Span(0, due.size), Origin("w2", 0, 0, due.start))
        add(Span(0, rows), Span(due.size, info.cols), None)
        add(Span(rows, info.rows), Span(0, info.cols), None)
    return ProvenanceMap(parameter, rank, (experts, info.rows, info.cols), boxes, method="reference")
