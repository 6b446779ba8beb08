"""A check as a pytest item: what becomes of its claim's result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.errors import UsageError
from conformance.pytest_plugin import marks
from conformance.pytest_plugin.options import ASKED
from conformance.pytest_plugin.telling import Told, tell
from conformance.result import ClaimResult, Status

if TYPE_CHECKING:
    from conformance.catalogue import Claim
    from conformance.pytest_plugin.performer import Performer

#: What runs the claims of this process.
PERFORMER: pytest.StashKey[Performer] = pytest.StashKey()
_FAILED = frozenset({Status.FAIL, Status.CRASH, Status.ERROR, Status.TIMEOUT})


class NotProved(Exception):
    """Raised inside pytest for a claim that failed, or could not be measured. Carries the result."""

    def __init__(self, result: ClaimResult):
        super().__init__(result.id)
        self.result = result


class ClaimItem(pytest.Item):
    """One check. Its function is called by the Runner, with stack and context, never by pytest."""

    def __init__(self, *, claim: Claim, line: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.claim = claim
        self._line = line
        self._told = Told(claim.id)
        for mark in marks.of(claim, self.config.stash[ASKED]):
            self.add_marker(mark)
        self.extra_keyword_matches.add(claim.id)

    def runtest(self) -> None:
        """Passes for Status.PASS alone; what was neither right nor wrong is skipped, with its reason."""
        performer = self.config.stash[PERFORMER]
        try:
            result = performer.perform(self.claim)
        except UsageError as error:
            self._told.wrong_call = str(error)
            raise
        self._told.result, self._told.stacks = result, performer.new_stacks()
        self.user_properties += [("claim", result.id), ("status", str(result.status))]
        if result.status in _FAILED:
            raise NotProved(result)
        if result.status is not Status.PASS:
            pytest.skip(f"{result.status}: {result.reason}")

    def told(self, report: pytest.TestReport) -> None:
        """Put the result on the report: the only way by which it leaves this process."""
        tell(report, self._told)
        if report.skipped and isinstance(report.longrepr, tuple):
            report.longrepr = (str(self.path), self._line + 1, report.longrepr[2])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, UsageError):
            return str(excinfo.value)
        if not isinstance(excinfo.value, NotProved):
            return super().repr_failure(excinfo, style)
        from conformance.report import words

        result = excinfo.value.result
        lines = [f"{result.id}: {result.status}: {words.gist(result)}", f"claim: {self.claim.title}"]
        return "\n".join([*lines, *words.details(result)])

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._line, self.claim.id
