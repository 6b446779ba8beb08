"""The one Runner of a process that runs claims, behind the items that pytest calls one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import pytest

from conformance.pytest_plugin.items import ClaimItem

if TYPE_CHECKING:
    from conformance.catalogue import Claim
    from conformance.gate.runner import Runner
    from conformance.result import ClaimResult
    from conformance.stacks.protocols import StackInfo

#: Makes the Runner, given what it shall call for each stack that it opens.
OpenRunner = Callable[[Callable[["StackInfo"], None]], "Runner"]


class Performer:
    """Opens its Runner on first use. Runs each claim once, however often pytest asks (reruns, repeats): a second try
    that passes would hide a failure. `enter` is called before each look at the results, `begin` before a claim runs."""

    def __init__(
        self,
        open_runner: OpenRunner,
        begin: Callable[[Claim], None] = lambda claim: None,
        enter: Callable[[Claim, Runner], None] = lambda claim, runner: None,
    ):
        self._open = open_runner
        self._begin = begin
        self._enter = enter
        self._runner: Runner | None = None
        self._stacks: list[StackInfo] = []

    def perform(self, claim: Claim) -> ClaimResult:
        """Raises UsageError where a stack shows that the call is wrong."""
        if self._runner is None:
            self._runner = self._open(self._stacks.append)
        self._enter(claim, self._runner)
        if claim.id not in self._runner.results:
            self._begin(claim)
            self._runner.run_claim(claim)
        return self._runner.results[claim.id]

    def new_stacks(self) -> list[StackInfo]:
        """Stacks opened since the last call."""
        found, self._stacks[:] = list(self._stacks), []
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if isinstance(item, ClaimItem):
            item.told(report)
        return report

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        if self._runner is not None:
            self._runner.close()
