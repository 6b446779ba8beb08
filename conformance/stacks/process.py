"""A stack in its own process and interpreter: started through our launcher, spoken to over execnet, ended as a group.

Only simple types and bytes cross, never a pickle; bulk data goes through `shared.SharedBuffer` files in `folder`.
Every call has a time limit. A worker that hangs is ended and costs StackTimeout, one that dies StackCrashed; the
next call starts a fresh one.
"""

from __future__ import annotations

import atexit
import threading
from pathlib import Path
from typing import Any

from conformance import errors
from conformance.stacks.running import Running, WorkerSpec

__all__ = ["Worker", "WorkerSpec", "sources"]

_KINDS = {
    kind.__name__: kind for kind in (errors.StackMissing, errors.NotSupported, errors.StackRefused, errors.AdapterError)
}


def sources(*folders: Path) -> dict[str, str]:
    """The Python files of folders as {module: source}, for WorkerSpec.modules. Raises ValueError for a name that two of
    them have: one would stand for the other."""
    found = dict[str, str]()
    for path in (path for folder in folders for path in sorted(folder.glob("*.py")) if path.stem != "__init__"):
        if path.stem in found:
            raise ValueError(f"two modules of a worker are called {path.stem}: {path} is the second")
        found[path.stem] = path.read_text()
    return found


class Worker:
    """One worker process, started by the first call and again after a crash or a timeout. Thread-safe."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.generation = 0  #: counts starts: what was opened in an earlier worker is gone
        self._lock = threading.RLock()
        self._live: Running | None = None

    @property
    def folder(self) -> Path:
        """The private folder (0700) that both processes may put files in."""
        return self._started().folder

    @property
    def alive(self) -> bool:
        """Is a worker running (as far as is known)? Starts none."""
        return self._live is not None

    @property
    def pid(self) -> int:
        return self._started().pid

    def call(self, name: str, /, timeout: float | None = None, **arguments: Any) -> Any:
        """One call into the worker; result and arguments are simple types.

        Raises what the worker reports (StackMissing, NotSupported, StackRefused, AdapterError), or StackTimeout,
        StackCrashed. Anything else that interrupts the wait (Ctrl-C) ends the worker too: its answer is lost.
        """
        with self._lock:
            live = self._started()
            limit = self.spec.call_timeout if timeout is None else timeout
            try:
                kind, value = live.ask(name, arguments, limit)
            except BaseException:
                self.close()
                raise
        if kind == "ok":
            return value
        raise _KINDS.get(kind, errors.AdapterError)(value)

    def told(self, name: str, /, **arguments: Any) -> Any:
        """`call` of a function that answers ("ok", value), or an error's name and its words: that error is raised."""
        kind, value = self.call(name, **arguments)
        if kind == "ok":
            return value
        raise errors.named(kind, value)

    def _started(self) -> Running:
        with self._lock:
            if self._live is None:
                self._live = Running(self.spec)
                self.generation += 1
                atexit.register(self.close)
            return self._live

    def close(self) -> None:
        """End the worker and everything it started; remove the private folder. May be called twice."""
        with self._lock:
            live, self._live = self._live, None
            atexit.unregister(self.close)
        if live is not None:
            live.end()
