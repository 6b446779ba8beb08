"""Opening a file of a folder, and never one outside it: no path, no link out, no pipe or device."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from conformance.errors import UsageError, short


def open_inside(folder: Path, name: str, named_by: str = "") -> io.FileIO:
    """The regular file `name` of `folder`, open for reading and unbuffered. `named_by` says who named it.

    Raises UsageError: no plain name, missing, unreadable, no regular file, a link that leads out of the folder.
    """
    by = f"{named_by} names " if named_by else ""
    if not 0 < len(name) < 256 or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise UsageError(f"{by}{short(name, 200)}: the plain name of a file in {folder} was due")
    path = folder / name
    try:
        home, real = folder.resolve(strict=True), path.resolve(strict=True)
        if not real.is_relative_to(home):
            raise UsageError(f"{by}{path}: a link out of the folder, to {real}; a file in it was due: copy it in")
        # Not blocking: the far end of a pipe may never come. What it is shows only once it is open.
        file = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        why = error.strerror if isinstance(error, OSError) else "links in a circle"
        raise UsageError(f"{by}{path}: not readable: {why}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UsageError(f"{by}{path}: no regular file")
    return io.FileIO(file, "rb")


def resolved(folder: Path, name: str) -> Path:
    """The file's own path, for a process that opens it by name. Raises UsageError as `open_inside` does."""
    with open_inside(folder, name):
        return (folder / name).resolve(strict=True)


def read_whole(folder: Path, name: str, most: int) -> bytes:
    """All of a small file. Raises UsageError also if it is larger than `most` bytes."""
    with open_inside(folder, name) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UsageError(f"{folder / name}: {size} bytes; at most {most} were due")
        return file.read(most) or b""
