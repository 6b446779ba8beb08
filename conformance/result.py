"""The words of a verdict: statuses, evidence, claim results (design: `Status, verdict, exit code`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from conformance.provenance.boxes import ProvenanceMap


class Status(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    ERROR = "error"
    TIMEOUT = "timeout"
    BLOCKED = "blocked"
    NOT_RUN = "not-run"
    NOT_SUPPORTED = "not-supported"
    NOT_APPLICABLE = "not-applicable"
    WAIVED = "waived"


#: A claim with one of these ends the launch, required or not.
NO_GO = frozenset({Status.FAIL, Status.CRASH})
#: A claim with one of these stops the groups that need its group.
BLOCKING = frozenset({Status.FAIL, Status.CRASH, Status.ERROR, Status.TIMEOUT, Status.BLOCKED})
#: Final once measured: `--resume` keeps these and repeats the others. A waived claim is measured again (the waiver may
#: be gone by then), and so is a crash (whoever broke the run off may have killed the stack first).
MEASURED = frozenset({Status.PASS, Status.FAIL, Status.NOT_APPLICABLE})


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One place where the stack is wrong, in words: `byte 352 of rank 0 holds checkpoint byte 352; zero was due`."""

    where: str
    expected: str
    got: str
    meaning: str = ""
    rank: int | None = None
    expert: int | None = None


class Evidence(msgspec.Struct, omit_defaults=True):
    """What one check measured.

    `ok` decides pass or fail. `expected` and `measured` are simple types (numbers, strings, lists, dicts).
    `bound` is the derived error bound where a claim is numeric; `seed` names the random stream.
    """

    ok: bool
    summary: str
    expected: Any = None
    measured: Any = None
    bound: float | None = None
    seed: int | None = None
    findings: list[Finding] = []
    notes: list[str] = []
    stack: str = ""
    method: str = ""
    #: The measured maps, one a rank: what a later layer applies to seeded weights.
    maps: list[ProvenanceMap] = []
    due_maps: list[ProvenanceMap] = []


class ClaimResult(msgspec.Struct, omit_defaults=False):
    """One line of `evidence.jsonl` and one row of the gate's `--json`."""

    id: str
    layer: str
    group: str
    status: Status
    required: bool
    reason: str = ""
    evidence: Evidence | None = None
    seconds: float = 0.0
    repeat: str = ""
