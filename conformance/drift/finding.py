"""What the audit says: evidence, finding, rule, and the error with which a rule that cannot be evaluated ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from conformance.drift.context import Context

Status = Literal["pass", "drift", "not-found"]
Reason = Literal["anchor-absent", "ambiguous", "unparsed", "not-evaluated"]
Severity = Literal["wrong-output", "crash", "hang", "performance", "informational"]
PILLARS = {"W": "weights", "B": "builder topology", "K": "kernel wiring", "R": "runtime"}


class Evidence(msgspec.Struct, frozen=True, order=True):
    """One place in a source: path within the checkout, line as of this audit, and the sha256 of the whole file."""

    path: str
    line: int
    qualname: str
    snippet: str
    sha256: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


class Finding(msgspec.Struct, frozen=True):
    """One rule's result. `differences` are stable lines without line numbers: a baseline compares them."""

    status: Status
    expected: str
    actual: str
    differences: list[str] = []
    mpk: list[Evidence] = []
    ref: list[Evidence] = []
    note: str = ""
    #: Why it was not found; empty for the other statuses.
    reason: str = ""
    #: A drift that is known and held harmless for now: it is told, and does not decide the exit code.
    deferred: bool = False


class NotFound(Exception):
    """A rule cannot be evaluated: `reason` is one of Reason, `words` say what was looked for, and where."""

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason
        self.words = words


class Rule(msgspec.Struct, frozen=True):
    """One checkable statement. `features`: the design features (`profile`) without which it need not be found."""

    id: str
    title: str
    severity: Severity
    why: str
    check: Callable[[Context], Finding]
    #: What it reads: `text`, or one of the probes `weights`, `trace`, `scheduler` (which need --execute).
    method: str = "text"
    #: False: being absent is a legitimate design, and no reason for exit code 3.
    required: bool = True
    features: tuple[str, ...] = ()

    @property
    def pillar(self) -> str:
        return PILLARS[self.id[0]]


def judge(
    expected: str,
    actual: str,
    differences: list[str],
    mpk: list[Evidence],
    ref: list[Evidence] | None = None,
    note: str = "",
    deferred: bool = False,
) -> Finding:
    """A drift if there are differences, else a pass. Evidence and differences are put in a fixed order."""
    return Finding(
        status="drift" if differences else "pass",
        expected=expected,
        actual=actual,
        differences=sorted(set(differences)),
        mpk=sorted(set(mpk)),
        ref=sorted(set(ref or [])),
        note=note,
        deferred=deferred and bool(differences),
    )
