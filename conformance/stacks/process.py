"""A stack in its own process and interpreter: started through our launcher, spoken to over execnet, ended as a group.

Only simple types and bytes cross, never a pickle; bulk data goes through `shared.SharedBuffer` files in `folder`.
Every call has a time limit. A worker that hangs is ended and costs StackTimeout, one that dies StackCrashed; the
next call starts a fresh one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import execnet
import msgspec

from conformance import errors

_HERE = Path(__file__).parent
#: Environment of the harness that a foreign interpreter must not see (a trailing * is a prefix).
_DROP = ["PYTEST_*", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT", "VIRTUAL_ENV", "COV*"]
_LOG_LINES = 3
_LOG_BYTES = 4096
_TELLING = re.compile(r"error|fatal|exception|abort|killed|cannot|denied", re.IGNORECASE)
_KINDS = {
    kind.__name__: kind for kind in (errors.StackMissing, errors.NotSupported, errors.StackRefused, errors.AdapterError)
}


class WorkerSpec(msgspec.Struct, frozen=True):
    """What to start. `modules` (name -> source) are sent as one package; `entry` is the one that holds CALLS."""

    name: str
    python: str
    modules: dict[str, str]
    entry: str
    #: PYTHONPATH over there; the harness's own folders never belong in it.
    path: str = ""
    #: Added to the environment. `{folder}` in a value becomes the worker's private folder.
    environment: dict[str, str] = {}
    work_dir: str | None = None
    call_timeout: float = 300.0
    start_timeout: float = 300.0


def sources(folder: Path) -> dict[str, str]:
    """The Python files of a folder as {module: source}, for WorkerSpec.modules."""
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.py")) if path.stem != "__init__"}


class Worker:
    """One worker process, started by the first call and again after a crash or a timeout. Thread-safe."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.generation = 0  #: counts starts: what was opened in an earlier worker is gone
        self._lock = threading.RLock()
        self._live: _Live | None = None

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

    def _started(self) -> _Live:
        with self._lock:
            if self._live is None:
                self._live = _Live(self.spec)
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


class _Live:
    """A running worker. Construction starts it, or raises StackTimeout, StackCrashed, UsageError."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.pid = 0
        self.calls = 0
        self.folder = _private_folder(spec)
        home = Path(spec.work_dir) if spec.work_dir else self.folder
        self.log = (home / f"{spec.name}-worker-{os.getpid()}.log").absolute()
        self._log_start = self._log_size()
        self._deadline = time.monotonic() + spec.start_timeout
        self.group = execnet.Group()
        try:
            self._start()
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        spec = self.spec
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps(self._plan()))
        xspec = execnet.XSpec("popen")
        xspec.python = shlex.join([sys.executable, "-I", "-S", str(_HERE / "launcher.py"), str(plan)])
        watchdog = threading.Timer(spec.start_timeout, self._kill_launcher)
        watchdog.daemon = True
        watchdog.start()
        try:
            gateway = self.group.makegateway(xspec)
            self.channel = gateway.remote_exec((_HERE / "remote.py").read_text())
            self.pid = self._receive(self._left())["pid"]
            package = f"{spec.name}_worker"
            self.channel.send({"package": package, "modules": spec.modules, "entry": spec.entry})
            self._receive(self._left())
        except (self._channel_timeout, EOFError, OSError, AssertionError):
            if self._left() <= 0:
                late = f"did not start in {spec.start_timeout:g} s and was ended"
                raise errors.StackTimeout(f"the {spec.name} worker {late}{self._tail()}") from None
            raise self._crashed("while it started") from None
        finally:
            watchdog.cancel()

    _channel_timeout = execnet.gateway_base.Channel.TimeoutError

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _plan(self) -> dict[str, Any]:
        folder = str(self.folder)
        environment = {key: text.replace("{folder}", folder) for key, text in self.spec.environment.items()}
        if self.spec.path:
            environment["PYTHONPATH"] = self.spec.path
        return {
            "python": self.spec.python,
            "parent": os.getpid(),
            "folder": str(self.folder),
            "log": str(self.log),
            "drop": _DROP,
            "set": environment,
        }

    def ask(self, name: str, arguments: dict[str, Any], timeout: float) -> tuple[str, Any]:
        """(kind, value) of one call; raises StackTimeout or StackCrashed, after which this worker is of no use."""
        self.calls += 1
        self._log_start = self._log_size()
        try:
            self.channel.send((self.calls, name, arguments))
            identifier, kind, value = self._receive(timeout)
        except self._channel_timeout:
            raise errors.StackTimeout(
                f"{self.spec.name} did not answer {name} in {timeout:g} s and was ended{self._tail()}"
            ) from None
        except (EOFError, OSError):
            raise self._crashed(f"in {name}") from None
        if identifier != self.calls:
            expected = f"{self.calls} ({name})"
            raise errors.AdapterError(f"{self.spec.name} answered call {identifier}, not {expected}")
        return kind, value

    def _receive(self, timeout: float) -> Any:
        try:
            return self.channel.receive(timeout)
        except execnet.RemoteError as error:
            last = str(error).strip().splitlines()[-1]
            raise errors.AdapterError(f"the {self.spec.name} worker's own code failed: {last}") from None

    def _crashed(self, when: str) -> errors.StackCrashed:
        how = self._end_status()
        return errors.StackCrashed(f"the {self.spec.name} worker died {when}: {how}{self._tail()}")

    def _end_status(self) -> str:
        """How the launcher says that the worker ended: `exit 3`, `signal 11 (SIGSEGV)`."""
        report = self.folder / "exit.json"
        limit = time.monotonic() + 10
        while not report.exists() and time.monotonic() < limit:
            time.sleep(0.02)
        if not report.exists():
            return "how is not known"
        end = json.loads(report.read_text())
        if "signal" in end:
            with contextlib.suppress(ValueError):
                return f"signal {end['signal']} ({signal.Signals(end['signal']).name})"
            return f"signal {end['signal']}"
        return f"exit {end['exit']}"

    def _log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def _tail(self) -> str:
        """What this call left in the log, as the end of one line: its last errors, or its last lines."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, self._log_size() - _LOG_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if _TELLING.search(line)] or lines
        kept = f" (log: {self.log})" if self.log.parent != self.folder else ""
        return (f"; its last words: {' | '.join(telling[-_LOG_LINES:])}" if lines else "") + kept

    def _kill_launcher(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / "launcher.pid").read_text()), signal.SIGTERM)

    def _processes(self) -> list[subprocess.Popen[bytes]]:
        """The launcher, as execnet holds it."""
        return [gateway._io.popen for gateway in self.group]  # type: ignore[attr-defined]

    def end(self) -> None:
        """Ask the launcher to end the group, then make sure of it."""
        self._kill_launcher()
        for process in self._processes():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        if self.pid:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self.group.terminate(timeout=1.0)
        shutil.rmtree(self.folder, ignore_errors=True)


def _private_folder(spec: WorkerSpec) -> Path:
    """A new folder only we can enter, under `work_dir` if there is one."""
    try:
        if spec.work_dir:
            Path(spec.work_dir).mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{spec.name}-", dir=spec.work_dir)).absolute()
    except OSError as error:
        raise errors.UsageError(f"{spec.work_dir}: no folder can be made there: {error.strerror}") from None
