"""Routed experts from the files: each loaded on every rank, read back, and compared with the file's own bytes.

One slot of one layer serves all experts in turn: which slot an expert lands in is another claim's subject. The files
are mapped a window at a time. So memory is bounded, however large they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conformance.checkpoint.folder import Files
from conformance.checkpoint.header import Entry
from conformance.checkpoint.mapped import Mapped
from conformance.context import Context, due_map
from conformance.errors import Blocked, NotSupported, StackRefused
from conformance.provenance import fingerprint
from conformance.provenance.boxes import Box, Origin, State
from conformance.stacks.protocols import SHARDS, ExpertsLayer

if TYPE_CHECKING:
    import torch

_EXPERT = re.compile(r"((?:layers|mtp)\.\d+)\.ffn\.experts\.(\d+)\.(w[123])\.(weight|scale)")
_TENSORS = 6
_DTYPES = {"weight": "I8", "scale": "F8_E8M0"}
#: A byte pattern that no expert leaves behind everywhere: what was in the slot before the first one.
_BEFORE = 0xA5
#: Experts that every rank loads before the next ones are mapped, and ranks that do so at the same time: while one waits
#: for the stack's process, another compares.
_ROUND = 8
_THREADS = 4

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
        ranks = [stack.enter_context(_Rank(context, rank)) for rank in context.ranks]
        mapped = Mapped(Path(context.files.folder), ranks[0].layer, windows=_ROUND * _TENSORS)
        stack.callback(mapped.close)
        pool = stack.enter_context(ThreadPoolExecutor(min(len(ranks), _THREADS)))
        rest = iter(todo.values())
        while len(wrong) < most_wrong and (some := list(islice(rest, _ROUND))):
            sources = [_sources(parts, mapped) for parts in some]
            by_rank = list(pool.map(partial(_Rank.differences, of=sources), ranks))
            wrong += [one for of_expert in zip(*by_rank, strict=True) for found in of_expert for one in found]
            held = [source for expert in sources for shards in expert.values() for source in shards.values()]
            names += [source.name for source in held]
            nbytes += sum(source.data.numel() for source in held)
    return Verified(names, nbytes, wrong)


class _Source(NamedTuple):
    name: str
    entry: Entry
    data: torch.Tensor


#: {parameter: {shard: source}} of one expert.
_Sources = dict[str, dict[str, _Source]]


def _sources(parts: dict[Part, tuple[str, Entry]], mapped: Mapped) -> _Sources:
    """What the files have of one expert."""
    found: _Sources = {}
    for parameter, shards in SHARDS.items():
        kind = "scale" if parameter.endswith("_scale") else "weight"
        there = {shard: parts[shard, kind] for shard in shards if (shard, kind) in parts}
        found[parameter] = {
            shard: _Source(name, entry, mapped.view(name, entry).view(entry.shape))
            for shard, (name, entry) in there.items()
        }
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

    def differences(self, of: list[_Sources]) -> list[list[Wrong]]:
        """Load expert after expert and compare what is due of each here."""
        return [list(self._differences(sources)) for sources in of]

    def _differences(self, sources: _Sources) -> Iterator[Wrong]:
        for parameter, read in self._loaded(sources):
            due = self._due[parameter]
            data = fingerprint.checked(read, due)
            for box in due.boxes:
                if box.state is not State.SOURCE or box.origin is None or box.origin.shard not in sources[parameter]:
                    continue
                have = data[box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]
                if wrong := self._compare(parameter, box, box.origin, have, sources[parameter][box.origin.shard]):
                    yield wrong

    def _loaded(self, sources: _Sources) -> Iterator[tuple[str, torch.Tensor]]:
        """What each parameter holds after loading one expert."""
        given = {name: {shard: source.data for shard, source in shards.items()} for name, shards in sources.items()}
        if load_all := getattr(self.layer, "load_all", None):
            yield from load_all(given).items()
            return
        for parameter, shards in given.items():
            for shard, data in shards.items():
                self.layer.load(parameter, shard, 0, data)
            yield parameter, self.layer.read(parameter, 0)

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
