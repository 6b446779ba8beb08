"""A checkpoint's folder: config.json, one or several .safetensors files, and the index that ties names to files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from conformance import geometry
from conformance.checkpoint import header
from conformance.checkpoint.header import Entry
from conformance.checkpoint.inside import open_inside, read_whole
from conformance.checkpoint.scan import Scanner
from conformance.errors import UsageError, short
from conformance.geometry import Geometry

INDEX = "model.safetensors.index.json"
_SUFFIX = ".safetensors"
_MOST_FILES, _MOST_INDEX, _MOST_LISTED = 4096, 64 << 20, 1 << 16
_MOST_VALUE, _MOST_METADATA = 1024, 1 << 20


class Files(msgspec.Struct, frozen=True):
    """What the headers say. `entries` by tensor name; `digest` is a hash of all of it, `size` the data's bytes."""

    folder: str
    geometry: Geometry
    entries: dict[str, Entry]
    digest: str
    size: int


def read(path: str) -> Files:
    """Read config.json, the index and every header of the folder. No data is read.

    Raises UsageError naming file and key for whatever does not fit: see `header`; an index that names missing files or
    tensors, or files outside the folder; tensors and files that it does not name; a name in two files.
    """
    folder = Path(path)
    try:
        names = _listed(folder)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--checkpoint {short(path, 200)}: no readable folder: {why}") from None
    with open_inside(folder, "config.json"):
        model = geometry.load(str(folder / "config.json"))
    indexed = _index(folder) if INDEX in names else None
    entries = _together(folder, sorted(name for name in names if name.endswith(_SUFFIX)), indexed)
    words = msgspec.json.encode(sorted(entries.items()))
    size = sum(e.stop - e.start for e in entries.values())
    return Files(path, model, entries, hashlib.sha256(words).hexdigest(), size)


def _listed(folder: Path) -> set[str]:
    names: set[str] = set()
    with os.scandir(folder) as found:
        for entry in found:
            names.add(entry.name)
            if len(names) > _MOST_LISTED:
                raise ValueError(f"more than {_MOST_LISTED} files in it")
    return names


def _together(folder: Path, present: list[str], indexed: dict[str, str] | None) -> dict[str, Entry]:
    """Every header, and what the index says of it."""
    index = str(folder / INDEX)
    named = dict.fromkeys(indexed.values()) if indexed is not None else dict.fromkeys(present)
    if not named:
        raise UsageError(f"{folder}: no tensor and no {_SUFFIX} file in it; a checkpoint was due")
    if len(named) > _MOST_FILES:
        raise UsageError(f"{folder}: {len(named)} files; at most {_MOST_FILES} were due")
    entries: dict[str, Entry] = {}
    for file in named:
        left = header.MOST_NAMES - len(entries)
        for name, entry in header.read(folder, file, left, index if indexed is not None else "").items():
            if indexed is not None and name not in indexed:
                raise UsageError(f"{folder / file}: {short(name, 200)}: {INDEX} does not name this tensor")
            if indexed is not None and indexed[name] != file:
                where = short(indexed[name])
                raise UsageError(f"{folder / file}: {short(name, 200)}: by {INDEX} this tensor is in {where}")
            if name in entries:
                raise UsageError(f"{folder / file}: {short(name, 200)}: is in {entries[name].file} as well")
            entries[name] = entry
    if indexed is not None:
        for name, file in indexed.items():
            if name not in entries:
                raise UsageError(f"{index}: {short(name, 200)}: {file} holds no such tensor")
        for file in present:
            if file not in named:
                raise UsageError(
                    f"{folder / file}: {INDEX} names no tensor of this file; name it there, or take it away"
                )
    return entries


def _index(folder: Path) -> dict[str, str]:
    """tensor -> file. Which files these are is checked when they are opened."""
    scanner = Scanner(read_whole(folder, INDEX, _MOST_INDEX), str(folder / INDEX))
    found: dict[str, str] | None = None
    for key in scanner.members(16):
        if key == "weight_map":
            found = {}
            for name in scanner.members(header.MOST_NAMES, key):
                file = scanner.value(name, _MOST_VALUE)
                if not isinstance(file, str) or not file.endswith(_SUFFIX):
                    raise scanner.wrong(f"is in {short(file)}; the name of a {_SUFFIX} file was due", name)
                found[name] = file
        elif key == "metadata":
            _check_metadata(scanner, scanner.value(key, _MOST_METADATA))
        else:
            raise scanner.wrong("an unknown key; weight_map and metadata were due", key)
    scanner.end()
    if found is None:
        raise scanner.wrong("is missing; {tensor: file} was due", "weight_map")
    return found


def _check_metadata(scanner: Scanner, metadata: object) -> None:
    if not isinstance(metadata, dict):
        raise scanner.wrong(f"is {short(metadata)}; an object was due", "metadata")
    size = metadata.get("total_size", 0)
    if type(size) is not int or size < 0:
        raise scanner.wrong(f"is {short(size)}; a whole number of bytes was due", "total_size")
