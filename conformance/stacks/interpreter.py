"""Is this an interpreter, is this a checkout? A wrong path is a wrong call: one line, before any start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from conformance.errors import UsageError

_PROBE = "import sys; sys.stdout.write('python %d.%d' % sys.version_info[:2])"
_PROBE_SECONDS = 30
_OLDEST = (3, 10)


def resolve(python: str | None, option: str) -> str:
    """Absolute path of a usable interpreter (default: the one that runs us). `option` names it in messages.

    Raises UsageError: no such path, a folder, not executable, not a Python, or older than 3.10.
    """
    if python is None:
        return sys.executable
    found = python if os.sep in python else shutil.which(python)
    path = Path(found).expanduser().absolute() if found else None
    if path is None or not path.exists():
        raise UsageError(f"{option} {python}: no such file; name a Python interpreter")
    if path.is_dir():
        inside = path / "bin" / "python"
        hint = f"; nearest: {inside}" if inside.exists() else ""
        raise UsageError(f"{option} {python} is a folder; an interpreter was due{hint}")
    if not os.access(path, os.X_OK):
        raise UsageError(f"{option} {python} is not executable; an interpreter was due")
    version = _version(path, option)
    if version < _OLDEST:
        raise UsageError(f"{option} {python} is Python {version[0]}.{version[1]}; 3.10 or newer was due")
    return str(path)


def _version(path: Path, option: str) -> tuple[int, int]:
    try:
        probe = subprocess.run(
            [path, "-I", "-S", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{option} {path} did not answer like a Python in {_PROBE_SECONDS} s") from None
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be run: {error.strerror or error}") from None
    words = probe.stdout.decode(errors="replace").split()
    if len(words) < 2 or words[-2] != "python":
        how = f"it exits {probe.returncode} without answering"
        raise UsageError(f"{option} {path} is not a Python interpreter ({how})")
    major, minor = words[-1].split(".")
    return int(major), int(minor)


def checkout(source: str | None, package: str, option: str) -> str | None:
    """Absolute path of a source checkout that holds `package`. Raises UsageError if it does not."""
    if source is None:
        return None
    path = Path(source).expanduser().absolute()
    if not path.is_dir():
        raise UsageError(f"{option} {source}: no such folder; a checkout with {package}/__init__.py was due")
    if not (path / package / "__init__.py").is_file():
        due = f"the root of a {package} checkout was due"
        raise UsageError(f"{option} {source} holds no {package}/__init__.py; {due}")
    return str(path)


def search_path(first: list[str]) -> str:
    """PYTHONPATH for a foreign interpreter: `first`, then the inherited one less everything that is ours."""
    ours = {Path(entry).resolve() for entry in sys.path if entry and _is_ours(Path(entry))}
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = [e for e in inherited if Path(e).resolve() not in ours and not (Path(e) / "conformance").is_dir()]
    return os.pathsep.join([*first, *kept])


def _is_ours(entry: Path) -> bool:
    """The running interpreter's library folders, whose packages must not reach another interpreter."""
    return entry.name in ("site-packages", "dist-packages")
