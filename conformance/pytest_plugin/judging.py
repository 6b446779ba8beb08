"""From reports to a verdict and an exit code. Acts where pytest's own outcome is decided: in a session without xdist,
or in xdist's controller."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pytest

from conformance import catalogue
from conformance.errors import UsageError
from conformance.pytest_plugin.places import claim_at
from conformance.pytest_plugin.telling import Told, told
from conformance.result import Status

if TYPE_CHECKING:
    from conformance.gate.verdict import Verdict
    from conformance.pytest_plugin.options import Asked
    from conformance.pytest_plugin.record import Record

_PHASES = ("setup", "call", "teardown")
_FAILED = (Status.FAIL, Status.CRASH, Status.ERROR, Status.TIMEOUT)


class Judging:
    """`record` is None as long as the session is none of ours."""

    def __init__(self, config: pytest.Config, asked: Asked):
        self._config = config
        self.asked = asked
        self.record: Record | None = None
        self.verdict: Verdict | None = None
        self.complaint = ""
        self.left_out: Collection[str] = ()
        self._kept: Collection[str] = ()
        self._claims_failed = 0

    def selected(self, kept: Collection[str]) -> None:
        """Collection is over, and these claims will run. Raises pytest.UsageError if a policy refuses a selection."""
        self._kept = kept
        self.begin()
        if self.record is not None:
            from conformance.pytest_plugin import scope

            scope.refuse_selection(self.asked, kept)

    def begin(self) -> None:
        """Open the run folder, if a verdict is due. Raises pytest.UsageError for one that cannot be used."""
        if self.record is None and (self._kept or self.asked.judging):
            from conformance.pytest_plugin.record import Record

            self.record = Record(self.asked.run)

    @pytest.hookimpl
    def pytest_report_header(self) -> str | None:
        """What will be judged, where the command line alone says that something will."""
        if not self.asked.judging:
            return None
        from conformance.report import words

        return f"conformance: {words.opening(self.asked.run)}"

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        news = told(report) or _death(report)
        if news is None or self.record is None:
            return
        self._take(news, report)
        outcome = self.record.results.get(news.claim)
        if report.failed and report.when != "teardown" and outcome and outcome.status in _FAILED:
            self._claims_failed += not hasattr(report, "wasxfail")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge, unless the session itself broke; then pytest's own code stands."""
        if self.record is None:
            return
        try:
            if session.exitstatus not in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
                from conformance.pytest_plugin import scope

                self.verdict = self.record.close(*scope.judged(self.asked, self.left_out))
                self.complaint = self.record.stale_waiver(self.verdict)
                session.exitstatus = self._exit_code(session, self.verdict)
        finally:
            self.record.release()

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if self.record is not None and self.verdict is not None:
            from conformance.pytest_plugin import summary

            interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
            summary.show(terminalreporter, self.asked.run, self.verdict, self.record.path, interrupted)
            if self.complaint:
                terminalreporter.write_line(f"ERROR: {self.complaint}", red=True)

    def _take(self, news: Told, report: pytest.TestReport) -> None:
        assert self.record is not None
        claim = catalogue.get(news.claim)
        try:
            if news.wrong_call:
                raise UsageError(news.wrong_call)
            for info in news.stacks:
                self.record.saw_stack(info)
        except UsageError as error:
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
        if news.result is not None:
            self.record.add(news.result)
        elif report.failed:
            status = Status.ERROR if report.when in _PHASES else Status.CRASH
            self.record.add(self.record.outcome(claim, status, _gist(report)))
        elif report.skipped:
            self.record.add(self.record.outcome(claim, Status.NOT_RUN, _gist(report)))

    def _exit_code(self, session: pytest.Session, verdict: Verdict) -> int:
        """0 only for a GO; 1 too if anything that is no claim failed. Codes that are not about outcomes stand."""
        from conformance.gate.verdict import PYTEST_EXIT, Word

        status = session.exitstatus
        outcomes = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        if status not in outcomes:
            return status
        if self.complaint:
            return pytest.ExitCode.USAGE_ERROR
        foreign = session.testsfailed > self._claims_failed
        if foreign or (status == pytest.ExitCode.TESTS_FAILED and not session.testsfailed):
            return PYTEST_EXIT[Word.NO_GO]
        if verdict.verdict is Word.INCOMPLETE and self.asked.allow_incomplete and self._kept:
            return 0
        return PYTEST_EXIT[verdict.verdict]


def _death(report: pytest.TestReport) -> Told | None:
    """xdist's report of a claim in which a worker died: it has no phase, and comes from the controller."""
    if report.when in _PHASES:
        return None
    claim_id = claim_at(report.nodeid)
    return Told(claim_id) if claim_id else None


def _gist(report: pytest.TestReport) -> str:
    """What a skip or a failure that is not ours says, in one line."""
    where = getattr(report.longrepr, "reprcrash", None)
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else where.message if where else report.longrepr
    return str(words).strip().partition("\n")[0]
