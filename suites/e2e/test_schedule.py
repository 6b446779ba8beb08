"""How work is cut: all prompts in one batch, prompts in chunks over a prefix cache. Bits change, the model does not."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.context import Context
from conformance.e2e import distance
from conformance.e2e.limits import most_gap
from conformance.e2e.measured import Measured
from conformance.result import Evidence, Finding
from conformance.stacks.engine_protocol import Answer
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.e2e.telling import bounds, evidence, within


@claim("e2e.schedule.batch")
def batch(stack: Stack, context: Context) -> Evidence:
    """Every prompt's answer in a batch against its answer alone, up to where the tokens part."""
    measured = context.e2e
    seen: dict[str, dict[str, float]] = {}
    findings: list[Finding] = []
    for tp in measured.sizes:
        record = measured.record(tp)
        _compare(measured, f"{measured.name(tp)}, batched against alone", record.solo, record.batch, seen, findings)
    return evidence(measured, findings, _words(seen), seen, bounds(measured.limits.schedule), measured.sizes)


@claim("e2e.schedule.chunked")
def chunked(stack: Stack, context: Context) -> Evidence:
    """Chunks of a window's length, the prefix cache on and each prompt asked after the others that share nothing."""
    measured = context.e2e
    seen: dict[str, dict[str, float]] = {}
    findings: list[Finding] = []
    tp = measured.sizes[-1]
    for name, answers in measured.chunked().items():
        _compare(measured, f"{measured.name(tp)}, {name}", measured.record(tp).solo, answers, seen, findings)
        seen[f"{measured.name(tp)}, {name}"]["tokens from the cache"] = sum(a.cached for a in answers)
    return evidence(measured, findings, _words(seen), seen, bounds(measured.limits.schedule))


def _compare(
    measured: Measured,
    what: str,
    alone: Sequence[Answer],
    other: Sequence[Answer],
    seen: dict[str, dict[str, float]],
    findings: list[Finding],
) -> None:
    clean = measured.limits.schedule
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


def _words(seen: dict[str, dict[str, float]]) -> str:
    return "; ".join(f"{what}: p99 {s['p99']:.3f}, gap {s['gap']:.3f}" for what, s in seen.items())
