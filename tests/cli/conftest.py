"""`conformance(...)` in this process, from an empty working folder."""

from __future__ import annotations

import pytest

from tests.cli.calls import call


@pytest.fixture
def conformance(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: call(monkeypatch, capsys, *words)
