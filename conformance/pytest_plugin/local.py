"""A session without xdist: it collects, runs and judges in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from conformance.pytest_plugin.performer import Performer

if TYPE_CHECKING:
    from conformance.gate.runner import Runner
    from conformance.pytest_plugin.collecting import Collecting
    from conformance.pytest_plugin.judging import Judging
    from conformance.pytest_plugin.options import Asked
    from conformance.stacks.protocols import StackInfo


class Local:
    def __init__(self, config: pytest.Config, asked: Asked, collecting: Collecting, judging: Judging):
        self._config = config
        self._asked = asked
        self._collecting = collecting
        self._judging = judging
        self.performer = Performer(self._open)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Open the run folder before the first item; not where collection failed, since pytest then runs nothing."""
        if session.testsfailed and not self._config.option.continue_on_collection_errors:
            return
        self._judging.selected(self._collecting.kept)
        if self._judging.record is not None:
            self._judging.left_out = self._collecting.left_out()

    def _open(self, saw_stack: Callable[[StackInfo], None]) -> Runner:
        from conformance.gate.runner import Runner

        assert self._judging.record is not None
        runner = Runner(
            self._asked.run,
            lambda result: None,
            self._judging.record.known,
            saw_stack,
            folder=self._judging.record.path,
        )
        runner.recheck()
        return runner
