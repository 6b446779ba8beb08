"""Items, schedule order, and what the caller left out on purpose. Acts in the process that collects."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance import catalogue
from conformance.pytest_plugin.items import ClaimItem
from conformance.pytest_plugin.places import Reach, file_of
from conformance.pytest_plugin.suitefile import SuiteFile, open_suite

if TYPE_CHECKING:
    from conformance.pytest_plugin.options import Asked


class Collecting:
    """`kept` holds the claims that will run, once collection is over."""

    def __init__(self, config: pytest.Config, asked: Asked):
        self._config = config
        self._asked = asked
        self.kept: list[str] = []
        self._deselected: set[str] = set()
        self._ignored: set[Path] = set()

    @pytest.hookimpl
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> SuiteFile | None:
        return open_suite(module_path, parent)

    @pytest.hookimpl(wrapper=True)
    def pytest_ignore_collect(self, collection_path: Path) -> Generator[None, bool | None, bool | None]:
        ignored = yield
        if ignored:
            self._ignored.add(collection_path.resolve())
        return ignored

    @pytest.hookimpl
    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._deselected |= {item.claim.id for item in items if isinstance(item, ClaimItem)}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Outermost, so that whatever reorders items (--ff, random order) has done so before."""
        yield
        claims = [item for item in items if isinstance(item, ClaimItem)]
        if not claims:
            return
        dropped = self._not_in_run(claims)
        rank = {claim_id: n for n, claim_id in enumerate(catalogue.claims())}
        kept = sorted((item for item in claims if item not in dropped), key=lambda item: rank[item.claim.id])
        self.kept = list(dict.fromkeys(item.claim.id for item in kept))
        items[:] = [*kept, *(item for item in items if not isinstance(item, ClaimItem))]
        if dropped:
            self._config.hook.pytest_deselected(items=dropped)

    def left_out(self) -> list[str]:
        """Ids of the run that were not kept because the caller said so: deselected, out of reach of the arguments,
        ignored, or passed over by --lf. A suite that cannot be collected leaves nothing out: its claims were due."""
        from conformance.gate import schedule

        reach, last_failed = Reach(self._config), self._config.getoption("lf", False)
        missing = [c for c in schedule.planned(self._asked.run) if c.check and c.id not in self.kept]
        return [
            claim.id
            for claim in missing
            if last_failed
            or claim.id in self._deselected
            or not reach.includes(claim)
            or self._ignored & {file_of(claim), *file_of(claim).parents}
        ]

    def _not_in_run(self, claims: Sequence[ClaimItem]) -> Collection[ClaimItem]:
        """Claims of other layers than --layers names, or outside a policy that runs only its own."""
        if not self._asked.given:
            return ()
        from conformance.gate import schedule

        planned = {claim.id for claim in schedule.planned(self._asked.run)}
        return [item for item in claims if item.claim.id not in planned]
