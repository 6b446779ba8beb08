"""A pytest session's run folder: opened, filled as results come in, and closed with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance import report
from conformance.catalogue import Claim
from conformance.errors import UsageError
from conformance.gate import waivers
from conformance.gate.folder import RunFolder, default_path
from conformance.gate.settings import Resolved
from conformance.gate.verdict import Verdict, judge
from conformance.result import ClaimResult, Status
from conformance.stacks.protocols import StackInfo


class Record:
    """Raises pytest.UsageError if the folder holds another run, or none to resume."""

    def __init__(self, run: Resolved):
        self.run = run
        self.results: dict[str, ClaimResult] = {}
        self.path = Path(run.settings.run_dir) if run.settings.run_dir else default_path(run)
        try:
            self._folder = RunFolder(run, self.path, run.settings.resume)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None

    @property
    def known(self) -> dict[str, ClaimResult]:
        """What a broken run had measured."""
        return self._folder.known

    def saw_stack(self, info: StackInfo) -> None:
        """Raises UsageError if a resumed run meets another stack than the broken one did."""
        self._folder.saw_stack(info)

    def add(self, result: ClaimResult) -> None:
        """The first result of a claim counts."""
        if result.id in self.results:
            return
        self.results[result.id] = result
        if result != self.known.get(result.id):
            self._folder.record(result)

    def outcome(self, claim: Claim, status: Status, reason: str) -> ClaimResult:
        """A result for a claim that its check gave none."""
        required = claim.id in self.run.required
        return ClaimResult(claim.id, claim.layer, claim.group, status, required, reason)

    def close(self, claims: Sequence[Claim], selection: str) -> Verdict:
        """Judge these claims, count those without a result as not run, and write the folder's files."""
        for claim in claims:
            self.add(self._not_reached(claim))
        verdict = judge(self.run, [self.results[claim.id] for claim in claims], selection)
        report.write_all(self._folder, verdict)
        return verdict

    def stale_waiver(self, verdict: Verdict) -> str:
        """What is wrong with a waiver whose claim passes; empty if there is none. The gate ends with a wrong call."""
        try:
            waivers.check_stale(verdict.claims, self.run.waivers)
        except UsageError as error:
            return str(error)
        return ""

    def release(self) -> None:
        self._folder.close()

    def _not_reached(self, claim: Claim) -> ClaimResult:
        if reason := claim.not_applicable(self.run.target, self.run.given):
            return self.outcome(claim, Status.NOT_APPLICABLE, reason)
        if not claim.check:
            return self.outcome(claim, Status.NOT_RUN, "this version of the harness has no check for it")
        return self.outcome(claim, Status.NOT_RUN, "this session did not reach it")
