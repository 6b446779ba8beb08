"""Evidence of the e2e claims: what was compared, and where the first wrong block is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from conformance.e2e import blame, distance
from conformance.e2e.distance import Spread
from conformance.e2e.limits import FACTOR, Clean, most_gap
from conformance.e2e.measured import Measured
from conformance.errors import StackError
from conformance.result import Evidence, Finding
from conformance.stacks.engine_protocol import Answer


def within(spread: Spread, clean: Clean) -> bool:
    """NaN is within nothing."""
    return spread.values > 0 and spread.p99 <= FACTOR * clean.p99 and spread.max <= FACTOR * clean.max


def bounds(clean: Clean) -> dict[str, float]:
    return {"p99": round(FACTOR * clean.p99, 4), "max": round(FACTOR * clean.max, 4)}


def compare(
    measured: Measured,
    what: str,
    alone: Sequence[Answer],
    other: Sequence[Answer],
    seen: dict[str, dict[str, float]],
    findings: list[Finding],
    clean: Clean | None = None,
) -> None:
    """Answers to the same prompts, up to where their tokens part, and the gap there: within the limits of batching, of
    this checkpoint if no others are given. Adds to `seen` and to `findings`."""
    clean = clean or measured.limits.schedule
    spread = distance.spread(
        [distance.between(*distance.until_parted(a, b)) for a, b in zip(alone, other, strict=True)]
    )
    gaps = [p.gap for p in distance.partings(alone, other)]
    worst = max(gaps, default=0.0) if all(g == g for g in gaps) else float("nan")
    seen[what] = {**spread._asdict(), "gap": worst}
    if not within(spread, clean) or not worst <= most_gap(clean):
        due = " and ".join(f"{name} within {value:g}" for name, value in bounds(clean).items())
        gap = f", the largest gap at a parting within {most_gap(clean):g}"
        findings.append(Finding(what, due + gap, f"{spread.words}, gap {worst:.3f}"))


def evidence(
    measured: Measured,
    findings: Sequence[Finding],
    right: str,
    seen: Any,
    expected: Any = None,
    blamed: tuple[int, ...] = (),
) -> Evidence:
    """`blamed`: the sizes that are searched for a wrong block if there are findings."""
    told = blame.words(measured, blamed) if findings and blamed else []
    first = findings[0] if findings else None
    summary = right
    if first:
        summary = f"{first.where}: {first.got}; {first.expected} was due" + (f"; {told[0]}" if told else "")
    return Evidence(
        ok=first is None,
        summary=summary,
        expected=expected,
        measured=seen,
        findings=[*findings, *(Finding("localised", "every block as in the reference", words) for words in told)],
        notes=notes(measured),
        method=f"{measured.plan.stack} on {measured.plan.device}, {len(measured.prompts.short)} prompts, one at a time",
    )


def notes(measured: Measured) -> list[str]:
    """Of the engines that were measured so far, and of the limits."""
    found = []
    with suppress(StackError):
        found.append(measured.limits.words)
    for tp, record in measured.records.items():
        found += [f"{measured.name(tp)}: {note}" for note in record.notes]
        found += [f"{measured.name(tp)}: ended badly after it had answered: {record.ended}"] if record.ended else []
    return found
