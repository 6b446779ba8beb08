"""One running worker: started through the launcher, asked over its channel, ended as a group. Used by `process`."""

from __future__ import annotations

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
_LAUNCHER_LOST = "with its launcher, which was killed"
_LOG_LINES = 3
_LOG_BYTES = 4096
_TELLING = re.compile(r"error|fatal|exception|abort|killed|cannot|denied", re.IGNORECASE)


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


class Running:
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

    def _crashed(self, when: str) -> errors.StackError:
        """StackCrashed, unless someone else ended it: nothing kills itself with SIGKILL, and the launcher is ours."""
        how = self._end_status()
        words = f"the {self.spec.name} worker died {when}: {how}{self._tail()}"
        if "SIGKILL" in how or how == _LAUNCHER_LOST:
            return errors.AdapterError(f"{words}; killed from outside (out of memory?)")
        return errors.StackCrashed(words)

    def _end_status(self) -> str:
        """How the launcher says that the worker ended: `exit 3`, `signal 11 (SIGSEGV)`."""
        report = self.folder / "exit.json"
        limit = time.monotonic() + 10
        while not report.exists() and time.monotonic() < limit:
            if all(process.poll() is not None for process in self._processes()) and not report.exists():
                return _LAUNCHER_LOST
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
