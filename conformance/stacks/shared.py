"""Bulk tensors between two processes: mmapped files in a private folder, unlinked as soon as both sides hold them, and
mmapped parts of files that were there before.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.errors import AdapterError

if TYPE_CHECKING:
    from io import FileIO

    import torch

_ALIGNMENT = 4096


class SharedBuffer:
    """`nbytes` of flat uint8 memory, backed by a file that another process can map by `path`.

    The blocks are reserved at once: a full disk is an AdapterError here, and no SIGBUS later.
    """

    def __init__(self, folder: Path, name: str, nbytes: int) -> None:
        import torch

        self.path = folder / name
        self.nbytes = nbytes
        self.mapped = max(_ALIGNMENT, -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.mapped)
        except OSError as error:
            self.path.unlink()
            raise AdapterError(f"{folder}: cannot reserve {nbytes} bytes: {error.strerror}; free some space") from None
        finally:
            os.close(descriptor)
        self.tensor = torch.from_file(str(self.path), shared=True, size=self.mapped, dtype=torch.uint8)[:nbytes]

    def unlink(self) -> None:
        """Drop the name; the memory stays as long as someone maps it."""
        self.path.unlink(missing_ok=True)

    def offset(self, view: torch.Tensor) -> int | None:
        """Where a contiguous uint8 view starts in this buffer, in bytes; None if it is no view into it."""
        return _offset(self.tensor, view)


class FilePart:
    """Bytes [start, start + nbytes) of a file, as the system holds them: nothing is copied, nothing written back.

    Another process maps the same by `path` and `start`, which is a whole page.
    """

    def __init__(self, file: FileIO, path: Path, start: int, nbytes: int) -> None:
        import torch

        self.path, self.start, self.nbytes = path, start, nbytes
        held = mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY, offset=start)
        self.tensor = torch.frombuffer(held, dtype=torch.uint8)

    def offset(self, view: torch.Tensor) -> int | None:
        """As SharedBuffer's."""
        return _offset(self.tensor, view)


def _offset(memory: torch.Tensor, view: torch.Tensor) -> int | None:
    start = view.data_ptr() - memory.data_ptr()
    return start if start >= 0 and start + view.numel() <= memory.numel() else None
