"""The section that pytest prints at the end of a session that judged something."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.gate.settings import Resolved
from conformance.gate.verdict import Verdict, Word
from conformance.report import words

_COLOURS = {Word.GO: "green", Word.WAIVED: "yellow", Word.NO_GO: "red", Word.INCOMPLETE: "yellow"}


def show(reporter: pytest.TerminalReporter, run: Resolved, verdict: Verdict, path: Path, interrupted: bool) -> None:
    reporter.write_sep("=", "conformance")
    reporter.write_line(words.opening(run))
    reporter.write_line(words.counts(verdict, path))
    if lacking := words.lacking(verdict):
        reporter.write_line(lacking)
    if interrupted:
        reporter.write_line(f"interrupted: --run-dir {path} --resume goes on with this run")
    reporter.write_line(verdict.headline, bold=True, **{_COLOURS[verdict.verdict]: True})
