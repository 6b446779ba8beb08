"""Routed experts from the files: each loaded on every rank, read back, and compared with the file's own bytes.

One slot of one layer serves all experts in turn: which slot an expert lands in is another claim's subject. So memory is
one expert's, however large the files are.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conformance.checkpoint.folder import Files
from conformance.checkpoint.header import Entry
from conformance.checkpoint.reader import Reader
from conformance.context import Context, due_map
from conformance.errors import Blocked, NotSupported, StackRefused
from conformance.provenance import fingerprint
from conformance.provenance.boxes import Box, Origin, State
from conformance.stacks.protocols import SHARDS, ExpertsLayer

if TYPE_CHECKING:
    import torch

_EXPERT = re.compile(r"((?:layers|mtp)\.\d+)\.ffn\.experts\.(\d+)\.(w[123])\.(weight|scale)")
_DTYPES = {"weight": "I8", "scale": "F8_E8M0"}
_ALIGNMENT = 64
#: A byte pattern that no expert leaves behind everywhere: what was in the slot before the first one.
_BEFORE = 0xA5

Expert = tuple[str, int]
#: (shard, weight or scale): w1's scales are ("w1", "scale").
Part = tuple[str, str]


class Wrong(NamedTuple):
    """The first byte of a loaded expert that is not the file's. `offset` is the file's byte that was due."""

    rank: int
    name: str
    file: str
    offset: int
    due: int
    got: int
    parameter: str
    row: int
    col: int
    differing: int


class Verified(NamedTuple):
    names: list[str]
    nbytes: int
    wrong: list[Wrong]


def experts(files: Files) -> dict[Expert, dict[Part, tuple[str, Entry]]]:
    """(block, expert) -> its six tensors, in order of the files' bytes. Raises NotSupported without any in MXFP4."""
    found: dict[Expert, dict[Part, tuple[str, Entry]]] = {}
    for name, entry in files.entries.items():
        if (match := _EXPERT.fullmatch(name)) and entry.dtype == _DTYPES[match[4]] and len(entry.shape) == 2:
            found.setdefault((match[1], int(match[2])), {})[match[3], match[4]] = (name, entry)
    if not found:
        raise NotSupported("no routed expert in MXFP4 (I8 with F8_E8M0 scales) in the files, named as released")
    return dict(sorted(found.items(), key=lambda item: min((e.file, e.start) for _, e in item[1].values())))


def verify(context: Context, most_wrong: int = 16) -> Verified:
    """Load every expert of the files on every rank. Stops after `most_wrong` differences.

    Raises Blocked (the stack refuses the layer), NotSupported, what loading raises, and UsageError where a file has
    changed since its header was read.
    """
    assert context.files is not None
    todo = experts(context.files)
    names: list[str] = []
    nbytes = 0
    wrong: list[Wrong] = []
    with ExitStack() as stack:
        reader = Reader(Path(context.files.folder))
        stack.callback(reader.close)
        ranks = [stack.enter_context(_Rank(context, rank)) for rank in context.ranks]
        room = max(map(_room, todo.values()))
        buffer = ranks[0].layer.allocate(room)
        # One parameter at a time, so that it is still in the cache when the ranks come to it.
        for parameter, parts in ((parameter, parts) for parts in todo.values() for parameter in SHARDS):
            sources = _sources(parameter, parts, buffer, reader)
            for one in ranks:
                wrong += one.differences(parameter, sources)
            names += [source.name for source in sources.values()]
            nbytes += sum(source.data.numel() for source in sources.values())
            if len(wrong) >= most_wrong:
                break
    return Verified(names, nbytes, wrong)


class _Source(NamedTuple):
    name: str
    entry: Entry
    data: torch.Tensor


def _sources(
    parameter: str, parts: dict[Part, tuple[str, Entry]], buffer: torch.Tensor, reader: Reader
) -> dict[str, _Source]:
    """What the files have of one parameter, by shard, read into the buffer."""
    found, at = {}, 0
    for shard in SHARDS[parameter]:
        if (part := (shard, "scale" if parameter.endswith("_scale") else "weight")) in parts:
            name, entry = parts[part]
            flat = buffer[at : at + entry.stop - entry.start]
            reader.into(flat, name, entry)
            found[shard] = _Source(name, entry, flat.view(entry.shape))
            at += _aligned(entry)
    return found


class _Rank:
    """One rank's layer with room for one expert."""

    def __init__(self, context: Context, rank: int):
        self._rank = rank
        try:
            self.layer: ExpertsLayer = context.loader.open_experts(context.target.experts_request(rank, 1))
        except StackRefused as refusal:
            raise Blocked(f"the stack refuses to build it: {refusal}") from None
        try:
            parameters = self.layer.info.parameters
            if lacking := [name for name in SHARDS if name not in parameters]:
                raise NotSupported(f"the layer as built has no {lacking[0]}")
            self._due = {name: due_map(context.target, rank, name, parameters[name], 1) for name in SHARDS}
            for name in SHARDS:
                self.layer.fill(name, _BEFORE)
        except BaseException:
            self.layer.close()
            raise

    def __enter__(self) -> _Rank:
        return self

    def __exit__(self, *raised: object) -> None:
        self.layer.close()

    def differences(self, parameter: str, sources: dict[str, _Source]) -> list[Wrong]:
        """Load one expert's tensors of one parameter and compare what is due of each here."""
        for shard, source in sources.items():
            self.layer.load(parameter, shard, 0, source.data)
        due = self._due[parameter]
        data = fingerprint.checked(self.layer.read(parameter, 0), due)
        found = []
        for box in due.boxes:
            if box.state is not State.SOURCE or box.origin is None or box.origin.shard not in sources:
                continue
            have = data[box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]
            if one := self._compare(parameter, box, box.origin, have, sources[box.origin.shard]):
                found.append(one)
        return found

    def _compare(self, parameter: str, box: Box, origin: Origin, have: torch.Tensor, source: _Source) -> Wrong | None:
        want = source.data[origin.row : origin.row + len(box.rows), origin.col : origin.col + len(box.cols)]
        if want.shape != have.shape:
            raise NotSupported(f"{source.name} of shape {list(source.entry.shape)}: config.json says otherwise")
        if fingerprint.same(have, want):
            return None
        other = (have != want).nonzero()
        row, col = other[0].tolist()
        return Wrong(
            rank=self._rank,
            name=source.name,
            file=source.entry.file,
            offset=source.entry.start + (origin.row + row) * source.entry.shape[1] + origin.col + col,
            due=int(want[row, col]),
            got=int(have[row, col]),
            parameter=parameter,
            row=box.rows.start + row,
            col=box.cols.start + col,
            differing=len(other),
        )


def _room(parts: dict[Part, tuple[str, Entry]]) -> int:
    """Bytes that the largest parameter's sources take."""
    sizes = {(shard, kind): _aligned(entry) for (shard, kind), (_, entry) in parts.items()}
    return max(
        sum(size for (shard, what), size in sizes.items() if what == kind and shard in shards)
        for kind in _DTYPES
        for shards in SHARDS.values()
    )


def _aligned(entry: Entry) -> int:
    return -(-(entry.stop - entry.start) // _ALIGNMENT) * _ALIGNMENT
