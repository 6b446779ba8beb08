"""Bytes of single tensors, read from the files into memory that is given."""

from __future__ import annotations

import os
from collections import OrderedDict
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.checkpoint.header import Entry
from conformance.checkpoint.inside import open_inside
from conformance.errors import UsageError, short

if TYPE_CHECKING:
    import torch

_OPEN_FILES = 16


class Reader:
    """Reads by byte range; keeps a few files open."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: OrderedDict[str, FileIO] = OrderedDict()

    def into(self, target: torch.Tensor, name: str, entry: Entry) -> None:
        """Fill a flat uint8 tensor with the tensor's bytes. Raises UsageError where the file ends early or fails."""
        file = self._opened(entry.file)
        rest, at = memoryview(target.numpy().data), entry.start
        while rest:
            try:
                done = os.preadv(file.fileno(), [rest], at)
            except OSError as error:
                raise UsageError(f"{self._folder / entry.file}: {short(name)}: {error.strerror}") from None
            if not done:
                where = f"{self._folder / entry.file}: {short(name)}"
                raise UsageError(f"{where}: the file ends before byte {entry.stop}: it has changed since it was opened")
            rest, at = rest[done:], at + done

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def _opened(self, name: str) -> FileIO:
        if name not in self._files:
            if len(self._files) >= _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
            self._files[name] = open_inside(self._folder, name)
        return self._files[name]
