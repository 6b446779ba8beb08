"""Maps drawn: one bar for the checkpoint, one a rank; a colour says which rank a byte is due on.

A right map shows each rank's bar in its own colour, then its tail. Terminal text and SVG draw the same cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from rich.text import Text

from conformance.provenance.axis import Axis
from conformance.provenance.boxes import ProvenanceMap, Span, State
from conformance.provenance.picture import Run, runs

#: Okabe-Ito palette: told apart with colour-blind eyes too.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
_TAIL_FILL = {State.ZERO: "none", State.UNTOUCHED: "#888888", State.UNKNOWN: "#000000"}
_TAIL_CHARACTER = {State.ZERO: "·", State.UNTOUCHED: "?", State.UNKNOWN: "!"}
_TEXT_WIDTH = 60
_SVG_WIDTH, _BAR, _GAP, _LEFT = 720, 22, 10, 150


class Piece(NamedTuple):
    """Part of a bar, in stored units of the destination; `owner` is the rank on which its source is due."""

    place: Span
    owner: int | None
    state: State
    words: str


def text(maps: list[ProvenanceMap], due: list[ProvenanceMap]) -> list[Text]:
    """Lines for the terminal: every shard's checkpoint bar and rank bars, `·` zero, `?` untouched, `!` unknown."""
    lines = []
    for index, name in enumerate(Axis(maps[0].parameter).shards):
        total, bars = _bars(maps, due, index, name)
        for label, pieces in bars:
            line = Text(f"{label:<18}")
            for cell in range(_TEXT_WIDTH):
                unit = (cell * 2 + 1) * total // (2 * _TEXT_WIDTH)
                piece = next((p for p in pieces if p.place.start <= unit < p.place.stop), None)
                if piece is None:
                    line.append(" ")
                elif piece.owner is None:
                    line.append(_TAIL_CHARACTER.get(piece.state, "!"))
                else:
                    line.append(str(piece.owner % 10), style=f"bold {_COLOURS[piece.owner % len(_COLOURS)]}")
            lines.append(line)
        lines.append(Text())
    return lines


def svg(maps: list[ProvenanceMap], due: list[ProvenanceMap]) -> str:
    """A self-contained SVG of the same bars, each piece with its units as a tooltip."""
    axis = Axis(maps[0].parameter)
    drawn, y = [], 28
    for index, name in enumerate(axis.shards):
        total, bars = _bars(maps, due, index, name)
        for label, pieces in bars:
            drawn.append(f'<text x="0" y="{y + _BAR - 6}">{escape(label)}</text>')
            drawn += [_rectangle(piece, y, total) for piece in pieces]
            y += _BAR + _GAP
        y += _GAP
    title = f"{axis.parameter}: where each rank's {axis.unit}s come from (colour: the rank on which they are due)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _SVG_WIDTH} {y}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="currentColor">'
        f'<text x="0" y="14">{escape(title)}</text>{"".join(drawn)}</svg>'
    )


def _rectangle(piece: Piece, y: int, total: int) -> str:
    x = _LEFT + piece.place.start * _SVG_WIDTH / total
    width = len(piece.place) * _SVG_WIDTH / total
    fill = _TAIL_FILL.get(piece.state, "#000000") if piece.owner is None else _COLOURS[piece.owner % len(_COLOURS)]
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_BAR}" fill="{fill}" stroke="currentColor" '
        f'stroke-width=".5"><title>{escape(piece.words)}</title></rect>'
    )


def _bars(
    maps: list[ProvenanceMap], due: list[ProvenanceMap], index: int, name: str
) -> tuple[int, list[tuple[str, list[Piece]]]]:
    """(units of the longest bar, bars): the checkpoint as it is due to be cut, then what each rank holds."""
    owners = _owners(due, index)
    axis = Axis(maps[0].parameter)
    total = max(axis.width(maps[0]), *(span.stop for span, _ in owners), 1)
    checkpoint = [Piece(span, rank, State.SOURCE, f"{name} {span}, due on rank {rank}") for span, rank in owners]
    bars = [(f"checkpoint {name}", checkpoint)]
    bars += [(f"rank {m.rank}", [p for run in runs(m, index) for p in _pieces(run, owners)]) for m in maps]
    return total, bars


def _owners(due: list[ProvenanceMap], index: int) -> list[tuple[Span, int]]:
    return [(run.source, m.rank) for m in due for run in runs(m, index) if run.source]


def _pieces(run: Run, owners: list[tuple[Span, int]]) -> Iterator[Piece]:
    """A run cut where the due owner of its source changes."""
    if run.source is None:
        yield Piece(run.place, None, run.state, f"{run.place}: {run.state}")
        return
    shift = run.place.start - run.source.start
    for span, rank in owners:
        if part := span & run.source:
            place = Span(part.start + shift, part.stop + shift)
            yield Piece(place, rank, State.SOURCE, f"{place} <- {run.shard} {part}, due on rank {rank}")
