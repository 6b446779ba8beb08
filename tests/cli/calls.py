"""`conformance ...` in this process: what a person would see and the exit code."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from conformance.cli import main


class Call(NamedTuple):
    code: int
    out: str
    err: str


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> Call:
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["conformance", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return Call(int(ended.value.code or 0), out, err)
