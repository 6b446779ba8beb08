"""Starts one worker process, watches over it, and leaves nothing behind. Standard library only.

Run as `python -I -S launcher.py PLAN.json -u -c BOOTSTRAP`: PLAN names the interpreter, and the rest is what
execnet wants it to run. The launcher stays as the worker's parent, in a session of its own:

    harness  --pidfd-->  launcher  --PR_SET_PDEATHSIG-->  worker (session of its own)  -->  its children

When the harness dies (by SIGKILL too) or asks for the end (SIGTERM), the whole group and every orphan of it
are killed. How the worker ended is written to `exit.json` beside the plan. Outside Linux the parent is polled.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE = 1.5  #: seconds between SIGTERM and SIGKILL
POLL = 0.5  #: seconds between looks at the parent where there is no pidfd
STREAM_FD = 200  #: where the protocol pipe waits, out of the way of anything that prints


def main(argv):
    plan_path = argv[1]
    with open(plan_path, encoding="utf-8") as file:  # noqa: PTH123
        plan = json.load(file)
    folder = os.path.dirname(plan_path)  # noqa: PTH120
    os.setsid()
    _write(folder, "launcher.pid", str(os.getpid()))
    log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    parent = _Parent(plan["parent"])
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake = _wake_on_signals()

    child = os.fork()
    if child == 0:
        _become_worker(plan, argv[2:], os.getppid())
    os.close(0)
    os.close(1)
    status = _watch(child, parent, wake)
    _sweep(child)
    if status is not None:
        _write(folder, "exit.json", json.dumps(_describe(status)))
    if parent.gone():  # nobody else is left to remove it
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if status is None else min(255, abs(os.waitstatus_to_exitcode(status)))


def _become_worker(plan, arguments, launcher):
    """Never returns: own session, death with the launcher, the pipe moved away from stdout, then exec."""
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)
        os.dup2(1, STREAM_FD, inheritable=True)
        os.dup2(2, 1)
        os.chdir(plan["folder"])
        os.execve(plan["python"], [plan["python"], *_restoring(arguments)], _environment(plan))
    except BaseException as error:
        os.write(2, f"launcher: cannot start {plan['python']}: {error}\n".encode())
    os._exit(127)


def _restoring(arguments):
    """execnet's arguments, with its `-c` code first putting the pipe back to stdout, once site has been read."""
    at = arguments.index("-c") + 1
    code = f"import os;os.dup2({STREAM_FD},1);os.close({STREAM_FD});{arguments[at]}"
    return [*arguments[:at], code, *arguments[at + 1 :]]


def _environment(plan):
    """The inherited environment less what `drop` names (a trailing * is a prefix), with `set` on top."""
    exact = {name for name in plan["drop"] if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in plan["drop"] if name.endswith("*"))
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in exact and not (prefixes and name.startswith(prefixes))
    }
    return kept | plan["set"]


class _Parent:
    """The harness, watched by pidfd: PR_SET_PDEATHSIG would mean the thread that started us, not the process."""

    def __init__(self, pid):
        self.pid = pid
        self.fd = None
        with contextlib.suppress(AttributeError, OSError):
            self.fd = os.pidfd_open(pid)
        if os.getppid() != pid:
            sys.exit(1)

    def gone(self):
        return os.getppid() != self.pid


def _watch(child, parent, wake):
    """Until the worker ends (its wait status), or the parent is gone or a signal asks for the end (None)."""
    poller = select.poll()
    poller.register(wake, select.POLLIN)
    if parent.fd is not None:
        poller.register(parent.fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll(None if parent.fd is not None else POLL * 1000)}
        signals = _drain(wake)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return status
        if parent.fd in ready or parent.gone() or signals & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
            return None


def _sweep(child):
    """End the worker's group, then whatever was orphaned to us, until no child is left (5 s at most)."""
    _signal_group(child, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while _group_lives(child) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.01)
    _signal_group(child, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not _reap():
            return
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _reap():
    """Collect every child that has ended; whether any child is left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _group_lives(group):
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_group(group, number):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _children():
    """Process ids whose parent we are, from /proc (empty where there is none)."""
    found = []
    me = os.getpid()
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112, PTH208
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    fields = file.read().rpartition(")")[2].split()
                if int(fields[1]) == me:
                    found.append(int(name))
    return found


def _wake_on_signals():
    """A pipe that becomes readable, with the signal's number, when a child ends or the end is asked for."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _drain(fd):
    signals: set[int] = set()
    with contextlib.suppress(BlockingIOError):
        while data := os.read(fd, 256):
            signals.update(data)
    return signals


def _prctl(option, value):
    """Linux only; elsewhere the launcher's own watch has to do."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0)


def _describe(status):
    code = os.waitstatus_to_exitcode(status)
    return {"signal": -code} if code < 0 else {"exit": code}


def _write(folder, name, text):
    path = os.path.join(folder, name)  # noqa: PTH118
    with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)
    os.replace(f"{path}.new", path)  # noqa: PTH105


if __name__ == "__main__":
    sys.exit(main(sys.argv))
