"""Keeps audited code from writing outside its own folder, from starting processes and from the network.

A Python audit hook: it stops accidents and plain attempts, not an attacker who breaks the interpreter.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_REFUSED = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.kill",
    "pty.",
)
_PATHS = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink"}
_PATHS |= {"os.truncate", "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile"}


def install(folder: str) -> None:
    """From now on, writing is for `folder` only. There is no way back in this process."""
    home = os.path.realpath(folder) + os.sep

    def inside(path: Any) -> bool:
        if isinstance(path, int):
            return True  # a descriptor that is open already
        return (os.path.realpath(os.fspath(path)) + os.sep).startswith(home)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = (isinstance(mode, str) and any(c in mode for c in "wax+")) or (
                isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            )
            if writes and path is not None and path != os.devnull and not inside(path):
                raise PermissionError(f"the audit is read-only: writing {path!s} is refused")
        elif event in _PATHS:
            targets = arguments[:2] if event in {"os.rename", "os.link", "shutil.move"} else arguments[:1]
            for path in targets:
                if not inside(path):
                    raise PermissionError(f"the audit is read-only: {event} of {path!s} is refused")
        elif event.startswith(_REFUSED):
            raise PermissionError(f"audited code may not do this: {event}")

    sys.addaudithook(hook)
