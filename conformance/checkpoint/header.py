"""The header of one safetensors file: 8 bytes of length (little-endian), then JSON, then the tensors' bytes.

Source: the format's description in huggingface/safetensors. Stricter than its library in two ways: a name that comes
twice is an error, and so is a field that the format does not have.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from conformance.checkpoint.inside import open_inside
from conformance.checkpoint.scan import Scanner
from conformance.errors import UsageError, short

#: Bits of one element, by the format's own names.
BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
#: DeepSeek-V4-Pro in one file would have 145,108 names in 20 MB.
MOST_NAMES = 1 << 19
MOST_HEADER = 64 << 20
_MOST_ENTRY, _MOST_METADATA = 4096, 1 << 20
_MOST_DIMENSIONS, _LARGEST = 16, 1 << 48
_LENGTH = 8
_FIELDS = ("dtype", "shape", "data_offsets")


class Entry(NamedTuple):
    """One tensor: its bytes are [start, stop) of `file`, row-major."""

    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    stop: int


def read(folder: Path, name: str, most: int = MOST_NAMES, named_by: str = "") -> dict[str, Entry]:
    """Tensors of the file `name` of `folder`, at most `most`, in order of their names in it.

    Raises UsageError naming file and key: whatever is not as the format demands.
    """
    where = str(folder / name)
    with open_inside(folder, name, named_by) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_LENGTH) or b""
        if len(head) < _LENGTH:
            raise UsageError(f"{where}: {size} bytes; a safetensors file begins with {_LENGTH} bytes of header length")
        length = int.from_bytes(head, "little")
        if length > min(MOST_HEADER, size - _LENGTH):
            raise UsageError(
                f"{where}: a header of {length} bytes in a file of {size}; at most {MOST_HEADER}, inside the file, "
                "was due: truncated, or no safetensors file"
            )
        data = file.read(length) or b""
    if len(data) < length or data[:1] != b"{":
        raise UsageError(f"{where}: its header is no JSON object: truncated, or no safetensors file")
    begin = _LENGTH + length
    found = _entries(Scanner(data, where), name, begin, size, most)
    _contiguous(found, where, begin, size)
    return found


def _entries(scanner: Scanner, name: str, begin: int, size: int, most: int) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for key in scanner.members(most + 1):
        if key == "__metadata__":
            metadata = scanner.value(key, _MOST_METADATA)
            if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
                raise scanner.wrong("an object of strings was due", key)
            continue
        if len(found) >= most:
            raise scanner.wrong(f"more than {most} tensors; at most that many were due", key)
        found[key] = _entry(scanner, key, scanner.value(key, _MOST_ENTRY), name, begin, size - begin)
    scanner.end()
    return found


def _entry(scanner: Scanner, key: str, value: Any, file: str, begin: int, room: int) -> Entry:
    if not isinstance(value, dict) or sorted(value) != sorted(_FIELDS):
        got = f"an object with {short(sorted(value))}" if isinstance(value, dict) else short(value)
        raise scanner.wrong(f"{got}; an object with dtype, shape and data_offsets was due", key)
    dtype, shape, offsets = (value[field] for field in _FIELDS)
    if not isinstance(dtype, str) or dtype not in BITS:
        raise scanner.wrong(f"dtype is {short(dtype)}; one of {', '.join(BITS)} was due", key)
    if not _whole(shape, _LARGEST) or len(shape) > _MOST_DIMENSIONS:
        due = f"a list of at most {_MOST_DIMENSIONS} whole numbers from 0 to {_LARGEST}"
        raise scanner.wrong(f"shape is {short(shape)}; {due} was due", key)
    if not _whole(offsets, _LARGEST) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise scanner.wrong(f"data_offsets is {short(offsets)}; [begin, end] in bytes was due", key)
    start, stop = offsets
    if stop > room:
        raise scanner.wrong(f"data_offsets end at byte {stop}, the file holds {room} of data: truncated?", key)
    bits = prod(shape) * BITS[dtype]
    if bits != 8 * (stop - start):
        need = f"{-(-bits // 8)} bytes" if bits % 8 == 0 else f"{bits} bits, no whole bytes"
        raise scanner.wrong(f"{dtype} of shape {short(shape)} takes {need}; data_offsets hold {stop - start}", key)
    return Entry(dtype, tuple(shape), file, begin + start, begin + stop)


def _whole(value: Any, most: int) -> bool:
    """A list of whole numbers in range? JSON's true and 1.0 are none."""
    return isinstance(value, list) and all(type(v) is int and 0 <= v <= most for v in value)


def _contiguous(found: dict[str, Entry], where: str, begin: int, size: int) -> None:
    """Tensors fill the data from its first byte to its last, without a hole and without sharing a byte."""
    reached, before = begin, ""
    for key, entry in sorted(found.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != reached:
            what = "overlaps" if entry.start < reached else "leaves a hole after"
            neighbour = short(before, 200) if before else "the header"
            raise UsageError(
                f"{where}: {short(key, 200)}: data_offsets begin at byte {entry.start - begin}, {what} {neighbour}, "
                f"which ends at {reached - begin}"
            )
        reached, before = entry.stop, key
    if reached != size:
        last = short(before, 200) if before else "the header"
        raise UsageError(f"{where}: {last}: {size - reached} bytes follow it that belong to no tensor")
