"""The GPUs that a run holds for its foreign stacks: as many as a claim needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from conformance.catalogue import Claim
from conformance.gate import schedule
from conformance.gate.apart import Apart, Outcome
from conformance.gate.settings import Resolved
from conformance.world import leases

#: Seconds to wait for GPUs that others hold: a whole run of theirs.
_PATIENCE = 3600.0


class Seats:
    def __init__(self, run: Resolved, greedy: bool):
        self._run, self._greedy = run, greedy
        self._lease: leases.Lease | None = None

    def suit(self, claim: Claim, stacks: Sequence[Apart]) -> None:
        """Hold what the claim needs. More than are held now: `stacks` are closed and all are given back before others
        are waited for, since whoever waits with some in hand can wait for ever. Raises AdapterError after an hour."""
        needed = self._need(claim)
        if self._lease is not None:
            if len(self._lease.devices) >= min(needed, len(self._visible)):
                return
            for stack in stacks:
                stack.close()
            self.close()
        self._take(needed)

    def environment(self) -> dict[str, str]:
        """For a process that shall see these GPUs alone; nothing on a box without one."""
        if self._lease is None:
            self._take(1)
        assert self._lease is not None
        return self._lease.environment

    def told(self, outcome: Outcome) -> Outcome:
        """The outcome, its evidence with the GPUs by UUID."""
        evidence = outcome[2]
        if evidence is not None and self._lease is not None and self._lease.devices:
            evidence.notes.append(f"GPUs held: {', '.join(self._lease.devices)}")
        return outcome

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def _take(self, needed: int) -> None:
        most = max(map(self._need, schedule.planned(self._run)), default=1) if self._greedy else needed
        self._lease = leases.take(self._visible, needed, max(needed, most), _PATIENCE)

    def _need(self, claim: Claim) -> int:
        size = self._run.target.tp
        several = claim.together or claim.layer == "e2e"  # whose engines are of that size
        return size if several and size <= len(self._visible) else 1

    @cached_property
    def _visible(self) -> list[str]:
        return leases.visible() if self._run.profile.capability else []
