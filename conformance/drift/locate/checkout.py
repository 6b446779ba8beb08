"""A checkout, read and never written: files within its tree only, each with its hash; and the hash of the whole."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from conformance.drift.finding import Evidence, NotFound

#: No source that a rule reads comes near; a larger file is not a source.
MAX_BYTES = 8 << 20


class SourceFile:
    """One text file: path within the checkout, text, lines, and evidence for a line of it."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.sha256 = hashlib.sha256(data).hexdigest()
        try:
            self.text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotFound("unparsed", f"{path}: not UTF-8 text (byte {error.start})") from None
        self.lines = self.text.splitlines()

    def evidence(self, line: int, qualname: str = "") -> Evidence:
        """`line` counts from 1."""
        snippet = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        return Evidence(self.path, line, qualname, snippet[:140], self.sha256)

    def line_of(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


class Checkout:
    """Files by path relative to `root`. What leads out of the tree is refused, whatever link it takes."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._files: dict[str, SourceFile] = {}

    def has(self, path: str) -> bool:
        try:
            return self._inside(path).is_file()
        except (NotFound, OSError, ValueError):
            return False

    def file(self, path: str) -> SourceFile:
        """Raises NotFound: anchor-absent (no such file), unparsed (out of the tree, not text, too large)."""
        if path not in self._files:
            target = self._inside(path)
            try:
                status = target.stat()
                if not stat.S_ISREG(status.st_mode):
                    raise NotFound("unparsed", f"{path}: no regular file")
                if status.st_size > MAX_BYTES:
                    raise NotFound("unparsed", f"{path}: larger than {MAX_BYTES >> 20} MiB, no source")
                self._files[path] = SourceFile(path, target.read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound("anchor-absent", f"{path}: no such file in the checkout") from None
            except OSError as error:
                raise NotFound("unparsed", f"{path}: not readable: {error.strerror}") from None
        return self._files[path]

    def strays(self, folder: str, suffix: str) -> list[str]:
        """Paths below `folder` that end in `suffix` and are no file of the tree: links out of it, for one."""
        found = (os.path.relpath(path, self.root) for path in (self.root / folder).rglob(f"*{suffix}"))
        return sorted(path for path in found if not self.has(path))

    def under(self, folder: str, suffix: str) -> list[str]:
        """Paths of the files below `folder` that end in `suffix`, sorted; files out of the tree are left out."""
        top = self.root / folder
        if not top.is_dir() or not top.resolve().is_relative_to(self.root):
            return []
        found = (os.path.relpath(path, self.root) for path in top.rglob(f"*{suffix}") if path.is_file())
        return sorted(path for path in found if self.has(path))

    def _inside(self, path: str) -> Path:
        target = (self.root / path).resolve()
        if not target.is_relative_to(self.root):
            raise NotFound("unparsed", f"{path}: leads out of the checkout, which is not followed")
        return target

    def fingerprint(self) -> str:
        """sha256 over every path, mode, link target and content below the root, .git left out."""
        whole = hashlib.sha256()
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if name != ".git")
            for name in sorted([*files, *folders]):
                path = Path(folder, name)
                whole.update(os.fsencode(os.path.relpath(path, self.root)) + b"\0")
                _update(whole, path)
        return whole.hexdigest()


def _update(whole: hashlib._Hash, path: Path) -> None:
    status = path.lstat()
    whole.update(f"{status.st_mode:o}\0".encode())
    if path.is_symlink():
        whole.update(os.fsencode(path.readlink()))
    elif path.is_file():
        try:
            whole.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            whole.update(f"unreadable {error.errno}".encode())
