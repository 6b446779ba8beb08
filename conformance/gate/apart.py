"""Judges a stack in a process of its own: what it does to that process costs one claim, and never the gate.

For stacks whose code runs where they are opened (kernel libraries, plug-ins). Checks and references go with them, so
that tensors stay on their device. `os._exit(0)`, a fault of the device and a hang each end that process; the
claim is a crash or a timeout, and the next claim has a new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from conformance.catalogue import Claim
from conformance.gate.settings import Resolved
from conformance.result import ClaimResult, Evidence, Status
from conformance.stacks.process import Worker
from conformance.stacks.protocols import StackInfo
from conformance.world import own

#: Seconds that one claim may take. The longest known, every tactic of FlashInfer's on 256 experts, takes under 180.
CLAIM_SECONDS = 600.0

Outcome = tuple[Status, str, Evidence | None]


class Apart:
    """A stack as the Runner holds it: it tells who it is, judges claims, and is closed."""

    def __init__(self, name: str, run: Resolved, environment: Callable[[], dict[str, str]] = dict):
        """`environment`: what a process that starts now gets beside the harness's own."""
        self.name = name
        profile = None if run.settings.emulate else run.profile.name
        self._settings = msgspec.json.encode(msgspec.structs.replace(run.settings, profile=profile))
        start = run.stack_options.start_timeout
        self._worker = Worker(own.spec(name, "conformance.gate.apart_worker", CLAIM_SECONDS, start))
        self._environment = environment
        self._generation = -1

    def info(self) -> StackInfo:
        """Raises what opening the stack raises; StackCrashed or StackTimeout where that ends the process."""
        return msgspec.json.decode(self._opened(), type=StackInfo)

    def judge(self, claim: Claim, results: Mapping[str, ClaimResult]) -> Outcome:
        """(status, reason, evidence) of one claim. `results`: of earlier claims, for the maps that they recorded.

        Raises StackCrashed, StackTimeout, and UsageError where a check finds that the call is wrong.
        """
        if not self._worker.alive or self._worker.generation != self._generation:
            self._opened()
        loads = [result for result in results.values() if result.layer == "loader"]
        word, reason, evidence = self._worker.told("judge", claim=claim.id, results=msgspec.json.encode(loads))
        status = Status(word)
        if status is Status.CRASH:
            self._worker.close()  # its device may be unusable
        return status, reason, msgspec.json.decode(evidence, type=Evidence) if evidence else None

    def close(self) -> None:
        self._worker.close()

    def _opened(self) -> bytes:
        if not self._worker.alive:
            self._worker.spec = msgspec.structs.replace(self._worker.spec, environment=self._environment())
        told: bytes = self._worker.told("open", settings=self._settings, stack=self.name, folder=os.getcwd())  # noqa: PTH109
        self._generation = self._worker.generation
        return told
