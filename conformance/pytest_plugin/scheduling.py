"""xdist's scheduling by group, with claims in ours. Imported only where pytest-xdist is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

from conformance import catalogue
from conformance.pytest_plugin.marks import group_of
from conformance.pytest_plugin.places import claim_at

if TYPE_CHECKING:
    from conformance.pytest_plugin.options import Asked


class ClaimScheduling(LoadGroupScheduling):
    """xdist finds a group by a suffix that it adds to node ids. xdist 3.8 under pytest 9.2 no longer does (it sets
    `Item._nodeid`, which pytest no longer reads), and then scatters every group without a word."""

    def __init__(self, config: Any, log: Any, asked: Asked):
        super().__init__(config, log)
        self._asked = asked

    def _split_scope(self, nodeid: str) -> str:
        if claim_id := claim_at(nodeid):
            return group_of(catalogue.get(claim_id), self._asked)
        scope: str = super()._split_scope(nodeid)
        return scope
