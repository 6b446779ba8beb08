"""Every tensor of the files but the routed experts': loaded into whole models by layers, and compared with the file.

A model is built with as few layers as show every kind; layers of the files take turns in the place of their kind. Where
a tensor lies in the parameters is what the trace of the loader saw; that this is right, other claims tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conformance.checkpoint.folder import Files
from conformance.checkpoint.header import Entry
from conformance.checkpoint.inside import resolved
from conformance.checkpoint.reader import Reader
from conformance.context import Context
from conformance.provenance import model_maps
from conformance.provenance.boxes import Box
from conformance.provenance.model_maps import ModelMaps, Tensors
from conformance.provenance.model_trace import matrix
from conformance.stacks.model_protocol import ELEMENT, FromFile, WholeModel
from references import checkpoint

if TYPE_CHECKING:
    import torch

_CHUNK = 8 << 20
_EXPERT = re.compile(r".*\.ffn\.experts\.\d+\..*")
_LAYER = re.compile(r"layers\.(\d+)\.")
#: safetensors' dtype -> torch's, where a stored element is what a parameter may hold converted.
_KINDS = {
    "BF16": "bfloat16",
    "F32": "float32",
    "F16": "float16",
    "F8_E4M3": "float8_e4m3fn",
    "I64": "int64",
    "I32": "int32",
}


class Wrong(NamedTuple):
    """The first element of a loaded block that is not the file's."""

    rank: int
    name: str
    file: str
    parameter: str
    row: int
    col: int
    differing: int


class Verified(NamedTuple):
    names: set[str]
    wrong: list[Wrong]


def verify(context: Context, draft: bool = False, most_wrong: int = 16) -> Verified:
    """Raises Blocked (the stack refuses the model), NotSupported, what loading raises, UsageError (changed file)."""
    assert context.files is not None
    tensors = model_maps.tensors(context.geometry, draft)
    names: set[str] = set()
    wrong: list[Wrong] = []
    folder = Path(context.files.folder)
    reader = Reader(folder)
    paths = {file: str(resolved(folder, file)) for file in {entry.file for entry in context.files.entries.values()}}
    try:
        for rank in context.ranks:
            maps = context.model(rank, draft)
            model = model_maps.opened(context.model_loader, context.target, rank, tensors, draft)
            try:
                for real in _turns(context, tensors, draft):
                    model.load_files(
                        [_handed(name, context.files.entries[real[name]], tensors, paths) for name in tensors.stored]
                    )
                    for parameter in maps.maps:
                        wrong += _differences(context.files, reader, model, maps, parameter, real, rank)
                    names |= {name for name in real.values() if not _EXPERT.fullmatch(name)}
                    if len(wrong) >= most_wrong:
                        return Verified(names, wrong)
            finally:
                model.close()
    finally:
        reader.close()
    return Verified(names, wrong)


def _turns(context: Context, tensors: Tensors, draft: bool) -> Iterator[dict[str, str]]:
    """Name in the model -> name in the files, for every turn, until each layer of the files has had its place."""
    if draft:
        yield {name: name for name in tensors.stored}
        return
    config = context.geometry.config
    kinds = [checkpoint.layer(config, index) for index in range(config["num_hidden_layers"])]
    waiting: dict[checkpoint.Layer, list[int]] = {}
    for index, kind in enumerate(kinds):
        waiting.setdefault(kind, []).append(index)
    last = {kind: layers[0] for kind, layers in waiting.items()}
    while any(waiting.values()):
        place = {}
        for slot in range(tensors.layers):
            kind = kinds[slot]
            last[kind] = place[slot] = waiting[kind].pop(0) if waiting[kind] else last[kind]
        yield {name: _moved(name, place) for name in tensors.stored}


def _moved(name: str, place: dict[int, int]) -> str:
    match = _LAYER.match(name)
    return f"layers.{place[int(match[1])]}.{name[match.end() :]}" if match else name


def _handed(name: str, entry: Entry, tensors: Tensors, paths: dict[str, str]) -> FromFile:
    dtype, shape = tensors.stored[name]
    return FromFile(name, dtype, shape, entry.shape, paths[entry.file], entry.start)


def _differences(
    files: Files,
    reader: Reader,
    model: WholeModel,
    maps: ModelMaps,
    parameter: str,
    real: dict[str, str],
    rank: int,
) -> Iterator[Wrong]:
    stored = maps.info.parameters[parameter]
    width = matrix(stored.shape)[1]
    element = ELEMENT[stored.dtype]
    for box in maps.maps[parameter].boxes:
        if box.origin is None or _EXPERT.fullmatch(box.origin.shard):
            continue
        name = real[box.origin.shard]
        entry = files.entries[name]
        step = max(1, _CHUNK // max(width * element, matrix(entry.shape)[1] * ELEMENT[entry.dtype]))
        for top in range(box.rows.start, box.rows.stop, step):
            bottom = min(top + step, box.rows.stop)
            read = model.read(parameter, top * width * element, bottom * width * element).view(bottom - top, -1)
            got = read[:, box.cols.start * element : box.cols.stop * element]
            due = _due(reader, name, entry, box, top, bottom, stored.dtype)
            if bool((got != due).any()):
                row, col = (got != due).nonzero()[0].tolist()
                differing = int((got != due).sum())
                yield Wrong(rank, name, entry.file, parameter, top + row, box.cols.start + col // element, differing)
                break


def _due(reader: Reader, name: str, entry: Entry, box: Box, top: int, bottom: int, dtype: str) -> torch.Tensor:
    """The file's bytes for rows [top, bottom) of a box, as elements of the parameter's dtype: uint8 (rows, bytes)."""
    import torch

    assert box.origin is not None
    across = matrix(entry.shape)[1]
    size = ELEMENT[entry.dtype]
    first = box.origin.row + top - box.rows.start
    line = torch.empty((bottom - top) * across * size, dtype=torch.uint8)
    start = entry.start + first * across * size
    reader.into(line, name, entry._replace(start=start, stop=start + line.numel()))
    left = box.origin.col
    part = line.view(bottom - top, across * size)[:, left * size : (left + len(box.cols)) * size]
    source = _KINDS.get(entry.dtype)
    if source is None or source == dtype:
        return part
    kinds = getattr(torch, source), getattr(torch, dtype)
    return part.contiguous().view(kinds[0]).to(kinds[1]).view(torch.uint8).view(bottom - top, -1)
