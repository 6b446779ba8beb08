"""Tensors of the files where the system holds them: views into mapped windows, which a stack's process maps as well."""

from __future__ import annotations

import mmap
import os
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conformance.checkpoint.header import Entry
from conformance.checkpoint.inside import open_inside, resolved
from conformance.errors import UsageError, short
from conformance.stacks.protocols import ExpertsLayer
from conformance.stacks.shared import FilePart

if TYPE_CHECKING:
    import torch

#: Bytes of a window; a longer tensor has a longer one of its own.
_WINDOW = 128 << 20


class _Window(NamedTuple):
    name: str
    file: FileIO
    part: FilePart

    def holds(self, entry: Entry) -> bool:
        start = self.part.start
        return self.name == entry.file and start <= entry.start and entry.stop <= start + self.part.nbytes


class Mapped:
    """A few windows, shared with `layer` as they come and taken back as they go, so that memory stays bounded."""

    def __init__(self, folder: Path, layer: ExpertsLayer, windows: int):
        """`windows`: how many views are in use at the same time, each of which may lie in a window of its own."""
        self._folder, self._layer, self._most = folder, layer, windows
        self._windows: list[_Window] = []  # the one used last comes last

    def view(self, name: str, entry: Entry) -> torch.Tensor:
        """The tensor's bytes, flat. Raises UsageError where the file is shorter by now than its header said."""
        found = next((window for window in self._windows if window.holds(entry)), None)
        if found is not None:
            self._windows.remove(found)
            self._check(found.file, name, entry)
        else:
            if len(self._windows) == self._most:
                self._drop(self._windows.pop(0))
            found = self._opened(name, entry)
        self._windows.append(found)
        start = found.part.start
        return found.part.tensor[entry.start - start : entry.stop - start]

    def close(self) -> None:
        while self._windows:
            self._drop(self._windows.pop())

    def _opened(self, name: str, entry: Entry) -> _Window:
        path = resolved(self._folder, entry.file)
        file = open_inside(self._folder, entry.file)
        size = self._check(file, name, entry)
        start = entry.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        part = FilePart(file, path, start, max(entry.stop, min(size, start + _WINDOW)) - start)
        self._layer.share(part)
        return _Window(entry.file, file, part)

    def _check(self, file: FileIO, name: str, entry: Entry) -> int:
        """Size of the file: to touch a page that it no longer has would end the process."""
        size = os.fstat(file.fileno()).st_size
        if size < entry.stop:
            where = f"{self._folder / entry.file}: {short(name)}"
            raise UsageError(f"{where}: the file ends before byte {entry.stop}: it has changed since it was opened")
        return size

    def _drop(self, window: _Window) -> None:
        self._layer.unshare(window.part)
        window.file.close()
