"""A worker process: what crosses, what comes back when it fails, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import errors
from conformance.stacks.process import Worker, WorkerSpec

ROOT = Path(__file__).parents[2]
API = """
import ctypes, os, subprocess, sys, time

def echo(value):
    print("noise on stdout")
    os.write(1, b"more noise")
    return value

def fail():
    raise ValueError("two\\nlines")

def refuse():
    class Refused(Exception):
        kind = "StackRefused"
    raise Refused("no, says the stack")

def kill(number):
    os.kill(os.getpid(), number)

def leave(code):
    os._exit(code)

def sleep(seconds):
    time.sleep(seconds)

def unsendable():
    return object()

def environment():
    return dict(os.environ)

def children():
    plain = subprocess.Popen(["sleep", "1000"])
    away = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return [os.getpid(), plain.pid, away.pid]

CALLS = {f.__name__: f for f in (echo, fail, refuse, kill, leave, sleep, unsendable, environment, children)}
"""


def spec(folder: Path, **changes: Any) -> WorkerSpec:
    fields: dict[str, Any] = {"name": "toy", "python": sys.executable, "modules": {"api": API}, "entry": "api"}
    return WorkerSpec(**(fields | {"work_dir": str(folder), "call_timeout": 20.0} | changes))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    process = Worker(spec(tmp_path))
    yield process
    process.close()


def gone(pids: list[int], seconds: float = 10) -> bool:
    """Have all of them ended? (A zombie that waits for its parent has.)"""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if not any(_lives(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_simple_types_come_back_as_they_went_and_noise_on_stdout_stays_out(worker: Worker) -> None:
    value = [1, 2.5, "text", b"\x00\xff", None, True, {"key": (1, 2)}]
    assert worker.call("echo", value=value) == value
    assert [worker.call("echo", value=i) for i in range(50)] == list(range(50))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        ("fail", errors.AdapterError, "ValueError: two lines (toy_worker/api.py:"),
        ("refuse", errors.StackRefused, "no, says the stack"),
        ("unsendable", errors.AdapterError, "cannot be sent"),
    ],
)
def test_an_exception_comes_back_as_one_line_and_the_worker_lives(
    worker: Worker, call: str, kind: type[Exception], message: str
) -> None:
    pid = worker.pid
    with pytest.raises(kind) as caught:
        worker.call(call)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert worker.call("echo", value=1) == 1
    assert worker.pid == pid


def test_the_whole_traceback_is_in_the_log(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(errors.AdapterError):
        worker.call("fail")
    (log,) = tmp_path.glob("toy-worker-*.log")
    assert 'raise ValueError("two' in log.read_text()


@pytest.mark.parametrize(
    ("call", "argument", "how", "kind"),
    [
        ("leave", {"code": 3}, "exit 3", errors.StackCrashed),
        ("kill", {"number": 11}, "signal 11 (SIGSEGV)", errors.StackCrashed),
        # no program kills itself so: the machine ran out of memory, or someone did it
        ("kill", {"number": 9}, "SIGKILL", errors.AdapterError),
    ],
)
def test_a_death_is_a_crash_that_says_how_and_the_next_call_starts_afresh(
    worker: Worker, call: str, argument: dict[str, int], how: str, kind: type[Exception]
) -> None:
    first = worker.pid
    with pytest.raises(kind, match=f"died in {call}: .*") as caught:
        worker.call(call, **argument)
    assert how in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not worker.alive
    assert worker.call("echo", value=2) == 2
    assert worker.pid != first
    assert worker.generation == 2


def test_a_hang_is_ended(worker: Worker) -> None:
    pid = worker.pid
    with pytest.raises(errors.StackTimeout, match=r"toy did not answer sleep in 0\.3 s"):
        worker.call("sleep", timeout=0.3, seconds=1000)
    assert gone([pid])
    assert worker.call("echo", value=3) == 3


def test_the_end_takes_children_along_even_those_in_sessions_of_their_own(worker: Worker, tmp_path: Path) -> None:
    pids = worker.call("children")
    folder = worker.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    worker.close()
    assert gone(pids)
    assert not folder.exists()
    assert [path.suffix for path in tmp_path.iterdir()] == [".log"]


def test_a_crash_takes_children_along(worker: Worker) -> None:
    pids = worker.call("children")
    with pytest.raises(errors.StackCrashed):
        worker.call("leave", code=1)
    assert gone(pids)


def test_a_worker_dies_with_its_launcher(worker: Worker) -> None:
    pid = worker.pid
    os.kill(int((worker.folder / "launcher.pid").read_text()), signal.SIGKILL)
    assert gone([pid])
    with pytest.raises(errors.AdapterError, match="died in echo: with its launcher, which was killed"):
        worker.call("echo", value=1)
    assert worker.call("echo", value=1) == 1


HARNESS = """
import sys, time
sys.path.insert(0, {root!r})
from conformance.stacks.process import Worker, WorkerSpec
worker = Worker(WorkerSpec("toy", sys.executable, {{"api": {api!r}}}, "api", work_dir={folder!r}))
print(*worker.call("children"), worker.folder, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_harness_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    code = HARNESS.format(root=str(ROOT), api=API, folder=str(tmp_path))
    harness = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert harness.stdout is not None
    *pids, folder = harness.stdout.readline().split()
    harness.send_signal(number)
    harness.wait()
    harness.stdout.close()
    assert gone([int(pid) for pid in pids])
    limit = time.monotonic() + 5
    while Path(folder).exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert not Path(folder).exists()


def test_a_worker_outlives_the_thread_that_started_it(worker: Worker) -> None:
    starter = threading.Thread(target=worker.call, args=("echo",), kwargs={"value": 1})
    starter.start()
    starter.join()
    pid = worker.pid
    time.sleep(0.2)
    assert worker.call("echo", value=1) == 1
    assert worker.pid == pid


def test_a_stack_that_prints_while_python_starts_does_not_break_the_channel(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    noise = "import os, sys\nprint('x' * 5000)\nos.write(1, b'raw noise')\nsys.stdout.flush()\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(noise)
    worker = Worker(spec(tmp_path / "run", path=str(tmp_path / "site")))
    try:
        assert worker.call("echo", value=1) == 1
        assert any("raw noise" in path.read_text() for path in (tmp_path / "run").glob("*.log"))
    finally:
        worker.close()


def test_a_start_that_hangs_is_ended(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(1000)\n")
    worker = Worker(spec(tmp_path / "run", path=str(tmp_path), start_timeout=1.0))
    with pytest.raises(errors.StackTimeout, match="did not start in 1 s"):
        worker.call("echo", value=1)
    assert list((tmp_path / "run").glob("toy-*/")) == []


def test_a_start_that_dies_is_a_crash_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.write(2, b'a fatal thing\\n')\nos._exit(7)\n")
    worker = Worker(spec(tmp_path / "run", path=str(tmp_path)))
    with pytest.raises(errors.StackCrashed, match=r"while it started: exit 7; its last words: a fatal thing"):
        worker.call("echo", value=1)


def test_the_environment_is_the_workers_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("KEPT", "yes")
    worker = Worker(spec(tmp_path, environment={"CACHE": "{folder}/cache"}))
    try:
        seen = worker.call("environment")
        assert not [name for name in seen if name.startswith("PYTEST_")]
        assert "PYTHONPATH" not in seen
        assert seen["KEPT"] == "yes"
        assert seen["CACHE"] == f"{worker.folder}/cache"
    finally:
        worker.close()


def test_a_broken_entry_module_is_our_error(tmp_path: Path) -> None:
    worker = Worker(spec(tmp_path, modules={"api": "import nowhere_to_be_found"}))
    with pytest.raises(errors.AdapterError, match="nowhere_to_be_found"):
        worker.call("echo", value=1)


def test_a_work_dir_that_cannot_be_made_is_a_wrong_call(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.UsageError, match="no folder can be made there"):
        Worker(spec(tmp_path / "file" / "run")).call("echo", value=1)


def test_file_descriptors_do_not_pile_up(worker: Worker) -> None:
    worker.call("echo", value=1)
    worker.close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        worker.call("echo", value=1)
        worker.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
