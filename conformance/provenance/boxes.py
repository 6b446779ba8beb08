"""The ProvenanceMap: run-length boxes of `destination <- source | zero | untouched`, and their exact comparison.

A destination byte has the coordinate (expert, row, column). A box covers a block of them; a source box says
which checkpoint byte its first byte came from, and the others follow in step along all three axes. A loaded
W2 shard of 256 experts is two boxes. Maps are canonical: boxes are as large as they can be, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec


class State(StrEnum):
    SOURCE = "source"
    ZERO = "zero"
    UNTOUCHED = "untouched"
    MINUS_INF = "-inf"  # of a whole model's float parameters: an attention sink that takes no part
    UNKNOWN = "unknown"  # neither zero, nor the prefill, nor any checkpoint byte


class Span(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Half-open [start, stop)."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"

    def __and__(self, other: Span) -> Span | None:
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return Span(start, stop) if start < stop else None


class Origin(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A checkpoint byte: which shard's tensor (`w1`), of which expert, at which row and column (bytes)."""

    shard: str
    expert: int
    row: int
    col: int

    def __str__(self) -> str:
        return f"{self.shard}[expert {self.expert}, row {self.row}, byte {self.col}]"

    def moved(self, experts: int, rows: int, cols: int) -> Origin:
        return Origin(self.shard, self.expert + experts, self.row + rows, self.col + cols)


class Box(msgspec.Struct, frozen=True, order=True):
    experts: Span
    rows: Span
    cols: Span
    state: State
    origin: Origin | None = None

    @property
    def size(self) -> int:
        return len(self.experts) * len(self.rows) * len(self.cols)

    def at(self, expert: int, row: int, col: int) -> Origin | None:
        """The source of the byte at that destination; None for zero, untouched and unknown."""
        if self.origin is None:
            return None
        return self.origin.moved(expert - self.experts.start, row - self.rows.start, col - self.cols.start)


class Difference(msgspec.Struct, frozen=True):
    """The first byte of one block where two maps disagree, and how many bytes the block has."""

    expert: int
    row: int
    col: int
    expected: str
    got: str
    expected_origin: Origin | None
    got_origin: Origin | None
    got_state: State
    size: int


class ProvenanceMap(msgspec.Struct, frozen=True):
    """One loaded parameter of one rank. `shape` is (experts, rows, cols) in bytes; `method` says how it was seen."""

    parameter: str
    rank: int
    shape: tuple[int, int, int]
    boxes: list[Box]
    method: str = ""
    #: Experts whose fingerprint differed; the boxes then cover `traced` experts only.
    differing: list[int] = []
    traced: list[int] = []
    #: The fingerprint differed, and yet digit passes see nothing that it had not seen: no position explains it.
    unexplained: bool = False
    #: Whole models: values of F32 came out with 8 significant bits.
    rounded: bool = False

    @property
    def covered(self) -> list[int]:
        return self.traced or list(range(self.shape[0]))

    def of_experts(self, experts: list[int]) -> ProvenanceMap:
        """The same map, cut to some experts."""
        boxes = [
            Box(cut, b.rows, b.cols, b.state, b.at(cut.start, b.rows.start, b.cols.start))
            for b in self.boxes
            for cut in (b.experts & Span(e, e + 1) for e in experts)
            if cut
        ]
        return msgspec.structs.replace(self, boxes=merge_experts(boxes), traced=experts)

    def within(self, rows: Span, cols: Span) -> Iterator[Box]:
        """The boxes cut to a region of the destination."""
        for box in self.boxes:
            r, c = box.rows & rows, box.cols & cols
            if r and c:
                yield Box(box.experts, r, c, box.state, box.at(box.experts.start, r.start, c.start))


def differences(expected: ProvenanceMap, got: ProvenanceMap) -> list[Difference]:
    """Every block where the maps disagree, in order of destination. Two empty lists mean byte for byte equal.

    A place that one of the maps does not cover at all is a difference too.
    """
    found = []
    claimed = [0] * len(got.boxes)
    for want in expected.boxes:
        covered = 0
        for index, have in enumerate(got.boxes):
            e, r, c = want.experts & have.experts, want.rows & have.rows, want.cols & have.cols
            if not (e and r and c):
                continue
            size = len(e) * len(r) * len(c)
            covered += size
            claimed[index] += size
            place = (e.start, r.start, c.start)
            if want.state is not have.state or want.at(*place) != have.at(*place):
                found.append(_difference(place, want, have, size))
        if covered != want.size:
            found.append(_difference(_first(want), want, None, want.size - covered))
    for have, size in zip(got.boxes, claimed, strict=True):
        if size != have.size:
            found.append(_difference(_first(have), None, have, have.size - size))
    return sorted(found, key=lambda d: (d.expert, d.row, d.col))


def _first(box: Box) -> tuple[int, int, int]:
    return box.experts.start, box.rows.start, box.cols.start


def _difference(place: tuple[int, int, int], want: Box | None, have: Box | None, size: int) -> Difference:
    return Difference(
        *place,
        expected=_words(want, place) if want else "nothing",
        got=_words(have, place) if have else "nothing measured",
        expected_origin=want.at(*place) if want else None,
        got_origin=have.at(*place) if have else None,
        got_state=have.state if have else State.UNKNOWN,
        size=size,
    )


def _words(box: Box, place: tuple[int, int, int]) -> str:
    if box.state is State.SOURCE:
        return f"checkpoint byte {box.at(*place)}"
    return {
        State.ZERO: "zero",
        State.UNTOUCHED: "untouched (never written)",
        State.MINUS_INF: "-inf",
        State.UNKNOWN: "a byte that is neither zero nor of the checkpoint",
    }[box.state]


def merge_experts(boxes: list[Box]) -> list[Box]:
    """Join boxes of neighbouring experts that continue each other: same block, sources one expert on."""
    merged: dict[tuple[Span, Span, State], list[Box]] = {}
    for box in sorted(boxes, key=lambda b: (b.experts, b.rows, b.cols)):
        chain = merged.setdefault((box.rows, box.cols, box.state), [])
        if (
            chain
            and chain[-1].experts.stop == box.experts.start
            and box.origin == chain[-1].at(box.experts.start, box.rows.start, box.cols.start)
        ):
            last = chain.pop()
            box = Box(Span(last.experts.start, box.experts.stop), box.rows, box.cols, box.state, last.origin)
        chain.append(box)
    return sorted((box for chain in merged.values() for box in chain), key=lambda b: (b.experts, b.rows, b.cols))
