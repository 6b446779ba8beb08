"""The kill matrix of a stack of foreign code, in a process of its own: one that ends it costs one fault."""

from __future__ import annotations

import msgspec

from conformance.errors import StackCrashed, StackTimeout, one_line
from conformance.faults.catalogue import FAULTS
from conformance.faults.selftest import Planted, Statuses
from conformance.stacks.process import Worker
from conformance.stacks.protocols import StackOptions
from conformance.world import own

#: Seconds for all claims without a fault, and for one fault. All claims of FlashInfer's MoE and graphs take under 300.
_SECONDS = 1800.0


class Apart:
    """As selftest.Bench. Raises what opening the stack raises; StackCrashed, StackTimeout where a clean run ends it."""

    def __init__(self, stack_name: str, options: StackOptions, only: list[str], backend: str | None):
        self._call = {"stack": stack_name, "options": msgspec.json.encode(options), "only": only, "backend": backend}
        entry = "conformance.faults.selftest_worker"
        self._worker = Worker(own.spec(stack_name, entry, _SECONDS, options.start_timeout))
        self._generation = -1
        self.clean: Statuses = {}
        try:
            self._open()
        except BaseException:
            self._worker.close()
            raise

    def plant(self, fault: str) -> Planted:
        """`not planted`, with the reason, where the process ends or hangs: a new one takes the next fault."""
        try:
            if not self._worker.alive or self._worker.generation != self._generation:
                self._open()
            return msgspec.json.decode(self._worker.told("plant", fault=fault), type=Planted)
        except (StackCrashed, StackTimeout) as error:
            known = FAULTS[fault]
            claims = list(known.claims)
            return Planted(
                id=fault,
                layer=known.layer,
                what=known.what,
                claims=claims,
                caught=False,
                caught_by=[],
                spared=claims,
                fails_clean=[],
                also=[],
                outcome="not planted",
                reason=one_line(error),
            )

    def close(self) -> None:
        self._worker.close()

    def _open(self) -> None:
        told = self._worker.told("open", clean=msgspec.json.encode(self.clean), **self._call)
        self.clean = msgspec.json.decode(told, type=Statuses)
        self._generation = self._worker.generation
