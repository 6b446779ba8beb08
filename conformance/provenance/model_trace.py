"""Where every element of a whole model came from: digit passes over all tensors at once, read back parameter by
parameter.

A pass numbers the tensors, the rows within each tensor, or the columns within each, one base-252 digit at a time; every
parameter is filled with NaN before each. Nothing is assumed about which parameter a tensor lands in. A parameter
of more than two axes is read as (all but the last, last); a checkpoint tensor is numbered alike.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from conformance.errors import StackError
from conformance.provenance import codes
from conformance.provenance.boxes import Box, Origin, ProvenanceMap, Span, State
from conformance.provenance.compress import EqualColumns, EqualRows, Scattered
from conformance.stacks.model_protocol import ELEMENT, Coded, Stored, WholeModel

_CHUNK = 16 << 20
#: Boxes of one parameter that are told apart.
MOST_BOXES = 4096
_STATES = {codes.ZERO: State.ZERO, codes.UNTOUCHED: State.UNTOUCHED, codes.MINUS_INF: State.MINUS_INF}


class Pass(NamedTuple):
    """What is numbered (`tensor`, `row` or `col`), and which digit of the number."""

    what: str
    digit: int


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, cols) as which a tensor of that shape is numbered and read."""
    if len(shape) < 2:
        return (shape[0] if shape else 1), 1
    rows = 1
    for length in shape[:-1]:
        rows *= length
    return rows, shape[-1]


def trace(model: WholeModel, checkpoint: dict[str, tuple[str, tuple[int, ...]]], rank: int) -> dict[str, ProvenanceMap]:
    """parameter -> its map, in elements. `checkpoint`: name -> (safetensors dtype, shape), in the order of loading.

    Raises StackError: what loading raised. Tensors of more than two axes are not numbered: NotSupported.
    """
    names = list(checkpoint)
    deepest = max(matrix(shape)[0] for _, shape in checkpoint.values())
    widest = max(matrix(shape)[1] for _, shape in checkpoint.values())
    kinds = [("tensor", len(names)), ("row", deepest), ("col", widest)]
    seen = _passes(model, checkpoint, kinds)
    return {name: _map(name, model.info.parameters[name], found, names, rank) for name, found in seen.items()}


def _passes(
    model: WholeModel, checkpoint: dict[str, tuple[str, tuple[int, ...]]], kinds: list[tuple[str, int]]
) -> dict[str, dict[Pass, EqualRows | EqualColumns | None]]:
    """parameter -> what every pass leaves in it. `kinds`: what is numbered, and how many of them there are."""
    seen: dict[str, dict[Pass, EqualRows | EqualColumns | None]] = {name: {} for name in model.info.parameters}
    for step in (Pass(what, digit) for what, count in kinds for digit in range(_digits(count))):
        model.fill(codes.PREFILL)
        model.load(numbered(checkpoint, step))
        for name, stored in model.info.parameters.items():
            seen[name][step] = compressed(model, name, stored, by_columns=step.what == "row")
    return seen


def where(model: WholeModel, checkpoint: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, set[str]]:
    """tensor -> the parameters that hold anything of it: only the passes that number the tensors."""
    names = list(checkpoint)
    held: dict[str, set[str]] = {}
    for parameter, found in _passes(model, checkpoint, [("tensor", len(names))]).items():
        passes = [one for one in found.values() if one]
        if len(passes) < len(found):
            continue  # scattered: nothing of it counts as found
        for top in sorted({start for one in passes for start in one.starts}):
            place = _number([_line(one, top) for one in passes], model.info.parameters[parameter].dtype)
            for number in place.number[place.state == 1].unique().tolist():
                if 0 <= number < len(names):
                    held.setdefault(names[number], set()).add(parameter)
    return held


def numbered(checkpoint: dict[str, tuple[str, tuple[int, ...]]], step: Pass) -> list[Coded]:
    """The checkpoint of one pass. Digit 0 of number n is 1 + n % 252."""
    made = []
    for index, (name, (dtype, shape)) in enumerate(checkpoint.items()):
        if len(shape) > 2:
            raise StackError(f"{name} has {len(shape)} axes; tensors of up to two are numbered")
        dim = 1 if step.what == "col" and len(shape) > 1 else 0
        length = shape[dim] if shape else 1
        if step.what == "tensor":
            numbers = torch.full((length,), index)
        elif step.what == "col" and len(shape) < 2:
            numbers = torch.zeros(length, dtype=torch.int64)
        else:
            numbers = torch.arange(length)
        made.append(Coded(name, dtype, shape, dim, codes.encode(_digit(numbers, step.digit), dtype)))
    return made


def _digits(count: int) -> int:
    n = 1
    while codes.COUNT**n < count:
        n += 1
    return n


def _digit(numbers: torch.Tensor, digit: int) -> torch.Tensor:
    return torch.div(numbers, codes.COUNT**digit, rounding_mode="floor") % codes.COUNT + 1


def compressed(model: WholeModel, name: str, stored: Stored, by_columns: bool) -> EqualRows | EqualColumns | None:
    """The parameter's different rows (or columns), as raw elements; None where it is scattered."""
    rows, cols = matrix(stored.shape)
    element = ELEMENT[stored.dtype]
    step = max(1, _CHUNK // (cols * element))
    found = EqualColumns() if by_columns else EqualRows()
    try:
        for top in range(0, rows, step):
            bottom = min(top + step, rows)
            data = model.read(name, top * cols * element, bottom * cols * element)
            found.add(codes.raw(data, stored.dtype, element).view(bottom - top, cols))
    except Scattered:
        return None
    return found


class _Place(NamedTuple):
    """One axis of a cell: per index the position in the source, or a state."""

    number: torch.Tensor
    state: torch.Tensor


def _number(lines: list[torch.Tensor], dtype: str) -> _Place:
    """Positions from the raw digits of every pass; `state` is 1 for a position, else one of codes.*."""
    number = torch.zeros(lines[0].shape, dtype=torch.int64)
    state = torch.ones(lines[0].shape, dtype=torch.int64)
    firsts = None
    for digit, line in enumerate(lines):
        code = codes.decode(line, dtype).to(torch.int64)
        good = (code >= 1) & (code <= codes.COUNT)
        here = torch.where(good, 1, code)
        firsts = here if firsts is None else firsts
        state = torch.where(here == firsts, here, codes.UNKNOWN)
        firsts = state
        number += (code - 1) * codes.COUNT**digit
    return _Place(number, state)


def _map(
    name: str, stored: Stored, found: dict[Pass, EqualRows | EqualColumns | None], names: list[str], rank: int
) -> ProvenanceMap:
    rows, cols = matrix(stored.shape)
    shape = (1, rows, cols)
    if any(one is None for one in found.values()):
        whole = Box(Span(0, 1), Span(0, rows), Span(0, cols), State.UNKNOWN)
        return ProvenanceMap(name, rank, shape, [whole], method="digit passes: scattered")
    by = {what: [one for step, one in found.items() if step.what == what and one] for what in ("tensor", "row", "col")}
    tops = sorted({start for one in by["tensor"] + by["col"] for start in one.starts})
    lefts = sorted({start for one in by["row"] for start in one.starts})
    boxes: list[Box] = []
    for top, bottom in zip(tops, [*tops[1:], rows], strict=True):
        tensor = _number([_line(one, top) for one in by["tensor"]], stored.dtype)
        col = _number([_line(one, top) for one in by["col"]], stored.dtype)
        for left, right in zip(lefts, [*lefts[1:], cols], strict=True):
            row = _number([_line(one, left)[top:bottom] for one in by["row"]], stored.dtype)
            for c0, c1 in _runs(tensor, col, left, right):
                for r0, r1 in _steps(row):
                    boxes.append(_box(Span(top + r0, top + r1), Span(c0, c1), tensor, col, row, (r0, c0), names))
                    if len(boxes) > MOST_BOXES:
                        whole = Box(Span(0, 1), Span(0, rows), Span(0, cols), State.UNKNOWN)
                        return ProvenanceMap(name, rank, shape, [whole], method="digit passes: scattered")
    coarse = any(codes.rounded(line, stored.dtype) for one in by["tensor"] for line in one.lines)
    return ProvenanceMap(name, rank, shape, joined(boxes), method="digit passes", rounded=coarse)


def _line(one: EqualRows | EqualColumns, index: int) -> torch.Tensor:
    run = max(i for i, s in enumerate(one.starts) if s <= index)
    return one.lines[run]


def _runs(tensor: _Place, col: _Place, left: int, right: int) -> list[tuple[int, int]]:
    """Columns [a, b) of one tensor (or state) whose column numbers follow in step."""
    t, ts, c, cs = (x[left:right] for x in (*tensor, *col))
    same = (ts[1:] == ts[:-1]) & (cs[1:] == cs[:-1])
    source = (ts[1:] == 1) & (cs[1:] == 1)
    same &= ~source | ((t[1:] == t[:-1]) & (c[1:] == c[:-1] + 1))
    starts = [left, *(left + 1 + i for i in (~same).nonzero().flatten().tolist())]
    return list(zip(starts, [*starts[1:], right], strict=True))


def _steps(row: _Place) -> list[tuple[int, int]]:
    n, s = row
    same = (s[1:] == s[:-1]) & ((s[1:] != 1) | (n[1:] == n[:-1] + 1))
    starts = [0, *(1 + i for i in (~same).nonzero().flatten().tolist())]
    return list(zip(starts, [*starts[1:], n.numel()], strict=True))


def _box(
    rows: Span, cols: Span, tensor: _Place, col: _Place, row: _Place, at: tuple[int, int], names: list[str]
) -> Box:
    r0, c0 = at
    states = {int(tensor.state[c0]), int(col.state[c0]), int(row.state[r0])}
    one = Span(0, 1)
    if states == {1}:
        index = int(tensor.number[c0])
        if 0 <= index < len(names):
            origin = Origin(names[index], 0, int(row.number[r0]), int(col.number[c0]))
            return Box(one, rows, cols, State.SOURCE, origin)
        return Box(one, rows, cols, State.UNKNOWN)
    state = _STATES.get(states.pop(), State.UNKNOWN) if len(states) == 1 else State.UNKNOWN
    return Box(one, rows, cols, state)


def joined(boxes: list[Box]) -> list[Box]:
    """Boxes that continue each other downwards or sideways, joined: sideways first, then downwards."""
    for sideways in (True, False):
        made: list[Box] = []
        order = sorted(boxes, key=lambda b: (b.rows, b.cols) if sideways else (b.cols, b.rows))
        for box in order:
            last = made[-1] if made else None
            if last and _continues(last, box, sideways):
                if sideways:
                    box = Box(box.experts, box.rows, Span(last.cols.start, box.cols.stop), box.state, last.origin)
                else:
                    box = Box(box.experts, Span(last.rows.start, box.rows.stop), box.cols, box.state, last.origin)
                made.pop()
            made.append(box)
        boxes = made
    return sorted(boxes, key=lambda b: (b.rows, b.cols))


def _continues(last: Box, box: Box, sideways: bool) -> bool:
    if sideways:
        beside = last.rows == box.rows and last.cols.stop == box.cols.start
    else:
        beside = last.cols == box.cols and last.rows.stop == box.rows.start
    return beside and last.state is box.state and box.origin == last.at(0, box.rows.start, box.cols.start)
