"""Under xdist one worker runs all claims of a group, since they share stacks, and the controller judges.

Results travel on reports, what the caller left out in the worker's output, and what a dead worker had measured in a
journal.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from conformance import catalogue
from conformance.pytest_plugin import marks
from conformance.pytest_plugin.journal import Journal, died
from conformance.pytest_plugin.performer import Performer
from conformance.pytest_plugin.places import claim_at
from conformance.result import ClaimResult

if TYPE_CHECKING:
    from conformance.catalogue import Claim
    from conformance.gate.runner import Runner
    from conformance.pytest_plugin.collecting import Collecting
    from conformance.pytest_plugin.judging import Judging
    from conformance.pytest_plugin.options import Asked
    from conformance.stacks.protocols import StackInfo

_JOURNAL, _KNOWN, _LEFT_OUT = "conformance_journal", "conformance_known", "conformance_left_out"


class Controller:
    def __init__(self, config: pytest.Config, judging: Judging):
        self._config = config
        self._judging = judging
        self._folder: Path | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self._judging.begin()
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="conformance-"))
        record = self._judging.record
        known = list(record.known.values()) if record else []
        node.workerinput[_JOURNAL] = str(self._folder)
        node.workerinput[_KNOWN] = msgspec.json.encode(known).decode()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> object:
        if config.option.dist != "loadgroup":
            return None
        from conformance.pytest_plugin.scheduling import ClaimScheduling

        return ClaimScheduling(config, log, self._judging.asked)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Raises pytest.UsageError where claims would be scattered over workers."""
        kept = [claim_id for node_id in ids if (claim_id := claim_at(node_id))]
        if kept and self._config.option.dist != "loadgroup":
            raise pytest.UsageError(
                f"--dist {self._config.option.dist} scatters the claims of one stack: use --dist loadgroup with -n"
            )
        self._judging.selected(kept)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", None) or {}
        self._judging.left_out = output.get(_LEFT_OUT, self._judging.left_out)

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Worker:
    def __init__(self, config: pytest.Config, asked: Asked, collecting: Collecting):
        given: dict[str, str] = config.workerinput  # type: ignore[attr-defined]
        self._output: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
        self._asked = asked
        self._collecting = collecting
        self._journals = Path(given[_JOURNAL])
        self._entered: dict[str, Journal] = {}
        known = msgspec.json.decode(given[_KNOWN], type=list[ClaimResult])
        self._known = {result.id: result for result in known}
        self.performer = Performer(self._open, lambda claim: self._journal(claim).begin(claim), self._enter)

    @pytest.hookimpl
    def pytest_collection_finish(self) -> None:
        if self._collecting.kept or self._asked.judging:
            self._output[_LEFT_OUT] = self._collecting.left_out()

    def _open(self, saw_stack: Callable[[StackInfo], None]) -> Runner:
        """A Runner that leaves GPUs to the workers of other groups."""
        from conformance.gate.runner import Runner

        runner = Runner(self._asked.run, self._record, self._known, saw_stack, greedy=False)
        runner.recheck()
        return runner

    def _enter(self, claim: Claim, runner: Runner) -> None:
        """With a group's first claim here: go on where a dead worker stopped, after the claim that killed it."""
        if marks.group_of(claim, self._asked) in self._entered:
            return
        journal = self._journal(claim)
        if victim := journal.victim():
            journal.record(died(catalogue.get(victim), victim in self._asked.run.required))
        runner.results.update(journal.results())

    def _record(self, result: ClaimResult) -> None:
        self._journal(catalogue.get(result.id)).record(result)

    def _journal(self, claim: Claim) -> Journal:
        """One a group: each has one writer at a time."""
        group = marks.group_of(claim, self._asked)
        return self._entered.setdefault(group, Journal(self._journals / f"{group}.jsonl"))
