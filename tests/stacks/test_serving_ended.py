"""How a server ended, or a process of its own that it cannot do without: from its exit status and its log."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.stacks.vllm.worker import engine, serving

RANK = "ERROR [multiproc_executor.py:276] Worker proc VllmWorker-1 died unexpectedly (exit code: {}), shutting down."
CORE = "ERROR [core_client.py:606] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n"


@pytest.mark.parametrize(
    ("log", "polled", "due"),
    [
        ("INFO: Application startup complete.", None, None),
        ("INFO: Application startup complete.", -11, -11),
        (RANK.format(-9), None, -9),
        (RANK.format(-11), 0, -11),
        (CORE, None, -9),
        (CORE, 1, -9),
        ("Fatal Python error: Segmentation fault\n" + CORE, -11, -11),
        ("Traceback (most recent call last):\n" + CORE, 1, 1),
    ],
)
def test_who_died_of_what(log, polled, due, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_text(log)
    monkeypatch.setitem(engine.RUNNING, "server", SimpleNamespace(poll=lambda: polled))
    assert serving.ended() == due
