"""From claim results to GO, NO-GO or INCOMPLETE (design: `Status, verdict, exit code`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from conformance import catalogue
from conformance.gate.settings import Resolved
from conformance.result import NO_GO, ClaimResult, Status


class Word(StrEnum):
    GO = "GO"
    WAIVED = "GO with waivers"
    NO_GO = "NO-GO"
    INCOMPLETE = "INCOMPLETE"


#: Exit codes of the commands; pytest gives 6 for INCOMPLETE, since its own codes end at 5.
EXIT = {Word.GO: 0, Word.WAIVED: 0, Word.NO_GO: 1, Word.INCOMPLETE: 3}
PYTEST_EXIT = EXIT | {Word.INCOMPLETE: 6}

_REFERENCE = "reference stack: this judges the harness, not a machine"


class Verdict(msgspec.Struct):
    """The gate's `--json`. `headline` is the verdict with everything that qualifies it."""

    verdict: Word
    headline: str
    scope: str
    subject: str
    profile: str
    stack: str
    geometry: str
    tp: int
    backend: str
    policy: str
    emulate: str | None
    repaired: list[str]
    forced: bool
    claims: list[ClaimResult]
    counts: dict[str, int]
    #: Layers that were judged on our own stack: no statement about a machine.
    reference_layers: list[str]

    @property
    def full_go(self) -> bool:
        """May a launch follow? Only a plain GO of real stacks over a full scope, nothing repaired, nothing forced."""
        real = not self.reference_layers
        return self.verdict is Word.GO and self.scope == "full" and real and not self.repaired and not self.forced


def judge(run: Resolved, results: Sequence[ClaimResult], selection: str = "") -> Verdict:
    """`selection` names a pytest selection that made the scope partial. Required claims without a result count
    as not run; so does a scope in which nothing is required and nothing passed."""
    if not selection:
        results = [*results, *_missing(run, results)]
    word = _word(results)
    layers = ", ".join(run.layers) if run.settings.layers else ""
    scope = "; ".join(part for part in (layers, selection) if part) or "full"
    subject = "reference" if set(run.stacks.values()) == {"reference"} else run.stack_words
    on_reference = [layer for layer, name in run.stacks.items() if name == "reference"]
    qualifiers = [
        _reference_words(on_reference, subject),
        f"emulating {run.settings.emulate}" if run.settings.emulate else "",
        f"policy: {run.settings.policy}" if run.settings.policy != "full" else "",
        f"scope: {scope}" if scope != "full" else "",
        f"repaired: {', '.join(run.repairs)}" if run.repairs else "",
        "forced: --force-shard" if run.settings.force_shard else "",
    ]
    said = "; ".join(q for q in qualifiers if q)
    return Verdict(
        verdict=word,
        headline=f"{word} ({said})" if said else str(word),
        scope=scope,
        subject=subject,
        profile=run.profile.name,
        stack=run.stack_words,
        geometry=run.target.geometry.name,
        tp=run.target.tp,
        backend=run.target.backend,
        policy=run.settings.policy,
        emulate=run.settings.emulate,
        repaired=list(run.repairs),
        forced=run.settings.force_shard,
        reference_layers=on_reference,
        claims=list(results),
        counts=dict(Counter(str(r.status) for r in results)),
    )


def _reference_words(layers: list[str], subject: str) -> str:
    if subject == "reference":
        return _REFERENCE
    return f"{', '.join(layers)} on the {_REFERENCE}" if layers else ""


def _missing(run: Resolved, results: Sequence[ClaimResult]) -> list[ClaimResult]:
    """Required claims of the scope that were never reached."""
    there = {result.id for result in results}
    claims = [catalogue.get(name) for name in run.required if name not in there]
    return [
        ClaimResult(c.id, c.layer, c.group, Status.NOT_RUN, True, "the run did not reach it")
        for c in claims
        if c.layer in run.layers
    ]


def _word(results: Sequence[ClaimResult]) -> Word:
    if any(r.status in NO_GO for r in results):
        return Word.NO_GO
    required = [r for r in results if r.required and r.status is not Status.NOT_APPLICABLE]
    if not required or any(r.status not in (Status.PASS, Status.WAIVED) for r in required):
        return Word.INCOMPLETE
    if any(r.status is Status.WAIVED for r in results):
        return Word.WAIVED
    return Word.GO
