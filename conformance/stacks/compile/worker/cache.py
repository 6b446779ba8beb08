"""Results by content: sources, flags and toolchain make the key, so that nothing stale is ever found."""

import functools
import hashlib
import json
import os
from importlib import metadata
from pathlib import Path

#: A new form of results, or a new way of measuring, gets a new number.
FORM = "1"


def folder():
    """$XDG_CACHE_HOME/tp-conformance/compile, made if need be."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(home) / "tp-conformance" / "compile"
    path.mkdir(parents=True, exist_ok=True)
    return path


def key(*parts):
    """The name of a result: a hash over everything that it depends on."""
    return hashlib.sha256(json.dumps([FORM, *parts], sort_keys=True).encode()).hexdigest()


def get(name):
    """A result, or None. What cannot be read is as good as missing."""
    try:
        return json.loads((folder() / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None


def put(name, result):
    """Whole or not at all: two runs may write the same result at once."""
    path = folder() / f"{name}.json"
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(result))
    new.replace(path)


@functools.cache
def tree(root, suffixes=()):
    """One hash over names and bytes of all files below; `suffixes`: of those alone."""
    whole = hashlib.sha256()
    for path in sorted(Path(root).rglob("*")):
        if path.is_file() and (not suffixes or path.suffix in suffixes) and "__pycache__" not in path.parts:
            whole.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode())
            whole.update(path.read_bytes())
    return whole.hexdigest()


def version(package):
    """A package's version, empty where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def record(package):
    """Hash of a package's own list of its files and their hashes: stands for a binary package's content."""
    try:
        listed = metadata.distribution(package).read_text("RECORD")
    except metadata.PackageNotFoundError:
        return ""
    return hashlib.sha256((listed or "").encode()).hexdigest()
