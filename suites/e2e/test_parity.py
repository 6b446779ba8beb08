"""Tensor-parallel sizes against each other: log-probabilities of the same tokens, and where greedy answers part."""

from __future__ import annotations

from collections.abc import Callable

from conformance.context import Context
from conformance.e2e import distance
from conformance.e2e.limits import Clean, most_gap
from conformance.e2e.measured import Measured
from conformance.e2e.record import Record
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.engine_protocol import Likely
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.e2e.telling import bounds, evidence, within


@claim("e2e.parity.logprobs")
def logprobs(stack: Stack, context: Context) -> Evidence:
    """Teacher-forced on the first size's answers; quantiles of |difference| over the top 20 of every position."""
    return _scored(context.e2e, context.e2e.limits.parity, lambda record: record.forced)


@claim("e2e.parity.long")
def long(stack: Stack, context: Context) -> Evidence:
    """A prompt longer than the indexer's choice."""
    measured = context.e2e
    if not measured.prompts.long:
        raise NotSupported("the model's context holds no prompt longer than its indexer's choice")
    return _scored(measured, measured.limits.long, lambda record: [record.long] if record.long else [])


def _scored(measured: Measured, clean: Clean, of: Callable[[Record], list[Likely]]) -> Evidence:
    base, seen, findings = of(measured.record(measured.base)), {}, []
    for tp in _others(measured):
        pairs = zip(base, of(measured.record(tp)), strict=True)
        spread = distance.spread([distance.between(a, b) for a, b in pairs])
        pair = f"{measured.name(measured.base)} against {measured.name(tp)}"
        seen[pair] = spread._asdict()
        if not within(spread, clean):
            due = " and ".join(f"{name} within {value:g}" for name, value in bounds(clean).items())
            findings.append(Finding(pair, due, spread.words))
    right = "; ".join(f"{pair}: p99 {s['p99']:.3f}, max {s['max']:.3f}" for pair, s in seen.items())
    return evidence(measured, findings, right, seen, bounds(clean), measured.sizes)


@claim("e2e.parity.divergence")
def divergence(stack: Stack, context: Context) -> Evidence:
    """Where greedy answers part, neither engine preferred its own token by more than twice the largest clean gap."""
    measured, seen, findings = context.e2e, {}, []
    most = most_gap(measured.limits.parity)
    base = measured.record(measured.base).solo
    for tp in _others(measured):
        parted = distance.partings(base, measured.record(tp).solo)
        gaps = [p.gap for p in parted]
        pair = f"{measured.name(measured.base)} against {measured.name(tp)}"
        seen[pair] = {"parted": f"{len(parted)} of {len(base)}", "gaps": [round(g, 4) for g in gaps]}
        for p in parted:
            if not p.gap <= most:
                where = f"{pair}, prompt {p.prompt}, step {p.step}"
                got = f"tokens {p.tokens[0]} and {p.tokens[1]}, preferred by {p.gap:.3f}"
                findings.append(Finding(where, f"a gap of at most {most:g}", got))
    right = "; ".join(f"{pair}: {s['parted']} answers part, gaps {s['gaps']}" for pair, s in seen.items())
    return evidence(measured, findings, right, seen, {"gap": most}, measured.sizes)


def _others(measured: Measured) -> tuple[int, ...]:
    if not measured.others:
        missing = "--against another server or a run" if measured.plan.names else "two sizes, as in --tp 2,3"
        raise NotSupported(f"{measured.name(measured.base)} alone: nothing to compare it with; give {missing}")
    return measured.others
