"""xdist's scheduling by group, with all claims in one. Imported only where pytest-xdist is."""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

from conformance.pytest_plugin.marks import GROUP
from conformance.pytest_plugin.places import claim_at


class ClaimScheduling(LoadGroupScheduling):
    """xdist finds a group by a suffix that it adds to node ids. xdist 3.8 under pytest 9.2 no longer does (it sets
    `Item._nodeid`, which pytest no longer reads), and then scatters every group without a word."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = GROUP if claim_at(nodeid) else super()._split_scope(nodeid)
        return scope
