"""Where every tensor of a whole model lies on every rank, against where it is due. One place a tensor and rank."""

from __future__ import annotations

from typing import NamedTuple

from conformance.context import Context
from conformance.errors import NotSupported, UnfitShape
from conformance.provenance import model_maps
from conformance.provenance.boxes import Box, Span, State
from conformance.provenance.model_maps import ModelMaps, Tensors
from conformance.provenance.model_trace import matrix
from conformance.result import Finding
from references import cuts

#: Tensors that a stack holds in one parameter, in order (vLLM: gate_up_proj, w13; fused_wqa_wkv; fused_wkv_wgate;
#: qkv_proj).
FUSED = (("w1", "w3"), ("wq_a", "wkv"), ("wkv", "wgate"), ("q_proj", "k_proj", "v_proj"))


class Due(NamedTuple):
    """The part of a tensor that a rank is due, in stored elements of (rows, cols)."""

    rows: Span
    cols: Span
    cut: cuts.Cut | None

    @property
    def empty(self) -> bool:
        return not len(self.rows) or not len(self.cols)

    def __str__(self) -> str:
        if self.cut is None:
            return "all of it"
        return f"{('rows', 'columns')[self.cut.axis]} {self.rows if self.cut.axis == 0 else self.cols}"


def tensors(context: Context, draft: bool = False) -> Tensors:
    found: Tensors = context.once(
        f"tensors {draft}", lambda: model_maps.tensors(context.geometry, draft, context.virtual)
    )
    return found


def due(context: Context, name: str, rank: int, draft: bool = False) -> Due:
    """Raises UnfitShape where no right cut exists."""
    known = tensors(context, draft)
    rows, cols = matrix(known.stored[name][1])
    try:
        cut = known.cut(name, context.target.tp, rank)
    except ValueError as error:
        raise UnfitShape(str(error)) from None
    if cut is None:
        return Due(Span(0, rows), Span(0, cols), None)
    piece = Span(cut.start, cut.stop)
    return Due(piece, Span(0, cols), cut) if cut.axis == 0 else Due(Span(0, rows), piece, cut)


def module(name: str) -> str:
    """`wq_b` of `layers.0.attn.wq_b.scale`; `embed` of `embed.weight`."""
    parts = name.split(".")
    return parts[-2] if parts[-1] in ("weight", "scale", "bias") and len(parts) > 1 else parts[-1]


def source(box: Box) -> tuple[Span, Span]:
    """(rows, cols) of the tensor that a box holds."""
    assert box.origin is not None
    o = box.origin
    return Span(o.row, o.row + len(box.rows)), Span(o.col, o.col + len(box.cols))


def placed(context: Context, rank: int, draft: bool = False) -> dict[str, list[tuple[str, Box]]]:
    """tensor -> every (parameter, box) of the rank that holds elements of it."""
    found: dict[str, list[tuple[str, Box]]] = context.once(f"placed {rank} {draft}", context.model(rank, draft).placed)
    return found


def homes(context: Context, draft: bool = False) -> dict[str, list[str]]:
    """parameter -> the tensors that belong there."""

    def find() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, parameter in context.model(0, draft).info.homes.items():
            found.setdefault(parameter, []).append(name)
        return found

    known: dict[str, list[str]] = context.once(f"homes {draft}", find)
    return known


def slots(context: Context, maps: ModelMaps, parameter: str, rank: int, draft: bool = False) -> dict[str, Span]:
    """tensor -> its rows in the parameter: the tensors that belong there, one below the other, in fused order.

    A cut tensor's room is a rank's share, or, where a kernel rounds, an equal part of what the parameter has.
    Raises UnfitShape where they do not fit.
    """
    known = tensors(context, draft)
    present = homes(context, draft).get(parameter, [])
    rows, _ = matrix(maps.info.parameters[parameter].shape)
    if not present:
        return {}
    ordered = _in_order(present)
    heights = []
    for name in ordered:
        cut = due(context, name, rank, draft).cut
        heights.append(cut.share if cut and cut.axis == 0 else matrix(known.stored[name][1])[0])
    if sum(heights) != rows and len(set(heights)) == 1 and rows % len(heights) == 0:
        heights = [rows // len(heights)] * len(heights)  # a kernel rounded every part up
    if sum(heights) > rows:
        raise UnfitShape(
            f"{parameter} has {rows} rows; {' + '.join(map(str, heights))} for {', '.join(ordered)} were due"
        )
    top, found = 0, {}
    for name, height in zip(ordered, heights, strict=True):
        found[name] = Span(top, top + height)
        top += height
    return found


def tails(context: Context, maps: ModelMaps, parameter: str, rank: int, draft: bool = False) -> list[tuple[Span, Span]]:
    """(rows, columns) of the parameter where no checkpoint element is due: behind each tensor's part in its room, and
    behind the last room. All of it on a rank that is due nothing."""
    rows, cols = matrix(maps.info.parameters[parameter].shape)
    found, bottom = [], 0
    for name, room in slots(context, maps, parameter, rank, draft).items():
        want = due(context, name, rank, draft)
        last = min(room.start + len(want.rows), room.stop)  # a parameter built too small has no tail
        found += [(Span(last, room.stop), Span(0, cols)), (Span(room.start, last), Span(len(want.cols), cols))]
        bottom = room.stop
    found.append((Span(bottom, rows), Span(0, cols)))
    return [(r, c) for r, c in found if r.start < r.stop and c.start < c.stop]


def _in_order(present: list[str]) -> list[str]:
    modules = {module(name) for name in present}
    order = next((group for group in FUSED if modules <= set(group)), ())

    def place(name: str) -> tuple[int, int, str]:
        parts = name.split(".")
        after = parts[parts.index("experts") + 1] if "experts" in parts else ""
        expert = int(after) if after.isdigit() else 0  # one tensor of all experts has no number
        return expert, order.index(module(name)) if order else 0, name

    return sorted(present, key=place)


def misplaced(context: Context, maps: ModelMaps, name: str, rank: int, draft: bool = False) -> Finding | None:
    """Is this tensor's due part, and nothing else of it, at the start of its room in exactly one parameter?"""
    want = due(context, name, rank, draft)
    held = placed(context, rank, draft).get(name, [])
    parameters = sorted({parameter for parameter, _ in held})
    where = f"rank {rank}, {name}"
    expected = "nothing of it" if want.empty else str(want)
    if want.empty and not held:
        return None
    if not held:
        return Finding(where, expected, "nothing", "the tensor was dropped: no parameter holds any of it", rank=rank)
    home = maps.info.homes.get(name)
    if home is None:
        raise NotSupported(f"the adapter does not know in which parameter of {maps.info.model} {name} belongs")
    if parameters != [home] and len(parameters) == 1:
        words = "tensors of one shape have changed places, or a name is mapped wrongly"
        return Finding(where, f"in {home}", f"in {parameters[0]}", words, rank=rank)
    if len(parameters) > 1:
        return Finding(where, expected, f"parts in {', '.join(parameters)}", "one parameter was due", rank=rank)
    if maps.maps[home].rounded and tensors(context, draft).stored[name][0] == "F32":
        return Finding(where, "F32 values as they are", "values of 8 significant bits", "rounded on the way", rank=rank)
    parts = [source(box) for _, box in held]
    got = ", ".join(_words(want, rows, cols) for rows, cols in parts[:3]) + (" ..." if len(parts) > 3 else "")
    if len(held) > 1 or parts[0] != (want.rows, want.cols):
        return Finding(where, expected, got, _lost(want, parts), rank=rank)
    room = slots(context, maps, home, rank, draft)[name]
    _, box = held[0]
    if (box.rows.start, box.cols.start) != (room.start, 0):
        return Finding(
            f"rank {rank}, {home}",
            f"{name} from row {room.start}, column 0",
            f"from row {box.rows.start}, column {box.cols.start}",
            "the right part in the wrong place",
            rank=rank,
        )
    return None


def _words(want: Due, rows: Span, cols: Span) -> str:
    if want.cut is None:
        return f"rows {rows} of columns {cols}"
    return f"{('rows', 'columns')[want.cut.axis]} {rows if want.cut.axis == 0 else cols}"


def _lost(want: Due, parts: list[tuple[Span, Span]]) -> str:
    held = sum(len(rows) * len(cols) for rows, cols in parts)
    size = len(want.rows) * len(want.cols)
    if len(parts) == 1 and held == size:
        return "another rank's part"
    return f"{held} elements of it are held, {size} were due"


def tail_problem(context: Context, maps: ModelMaps, parameter: str, box: Box, fill: State) -> str:
    """What is wrong with what a tail holds; empty if nothing is."""
    if box.state is fill:
        return ""
    if box.origin:
        return f"{box.origin.shard}, row {box.origin.row}, column {box.origin.col}"
    if box.state is not State.UNTOUCHED:
        return f"{box.state.value} where {fill.value} was due"
    began = maps.began_as(parameter, box)
    if began != fill.value:
        return f"never written, and {began} since construction"
    if fill is State.ZERO and context.padded:
        return "never written (zero since construction), where the plan pads and written zeros are due"
    return ""
