"""How a server ended, or a process of its own that it cannot do without: from its exit status and its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from conformance.stacks.vllm.worker import engine, serving

RANK = "ERROR [multiproc_executor.py:276] Worker proc VllmWorker-1 died unexpectedly (exit code: {}), shutting down."
FATAL = "ERROR [core.py:898] EngineCore encountered a fatal error."


@pytest.mark.parametrize(
    ("log", "core", "polled", "due"),
    [
        ("INFO: Application startup complete.", "lives", None, None),
        ("INFO: Application startup complete.", "lives", -11, -11),
        (RANK.format(-9), "gone", None, -9),
        (RANK.format(-11), "lives", 0, -11),
        ("Traceback of a warning", "gone", None, -9),
        ("Traceback of a warning", "gone", 1, -9),
        ("Fatal Python error: Segmentation fault", "gone", None, -11),
        ("!!!!!!! Segfault encountered !!!!!!!", "gone", 0, -11),
        ("terminate called after throwing an instance of 'c10::Error'", "gone", None, -6),
        (FATAL, "gone", None, 1),
    ],
)
def test_who_died_of_what(log, core, polled, due, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_text(log)
    monkeypatch.setitem(engine.RUNNING, "server", SimpleNamespace(poll=lambda: polled))
    with subprocess.Popen(["sleep", "60"]) as process:
        monkeypatch.setitem(engine.RUNNING, "family", [process.pid])
        if core == "gone":
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert serving.ended() == due
        process.kill()


def test_whom_a_server_cannot_do_without(tmp_path):
    """Below a process, those that call themselves vLLM's."""
    script = "import subprocess; p = subprocess.Popen(['VLLM::EngineCore', '60'], executable='/bin/sleep'); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        until = time.monotonic() + 20
        while not (found := serving._family(parent.pid)) and time.monotonic() < until:
            time.sleep(0.05)
        assert len(found) == 1 and serving._lives(found[0])
        os.kill(found[0], signal.SIGKILL)
        assert parent.wait(20) == 0 and not serving._lives(found[0])
