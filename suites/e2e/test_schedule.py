"""How work is cut: all prompts in one batch, prompts in chunks over a prefix cache. Bits change, the model does not."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.engine_protocol import Answer
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.e2e.telling import bounds, compare, evidence


@claim("e2e.schedule.batch")
def batch(stack: Stack, context: Context) -> Evidence:
    """Every prompt's answer in a batch against its answer alone, up to where the tokens part."""
    measured = context.e2e
    seen: dict[str, dict[str, float]] = {}
    findings: list[Finding] = []
    for tp in measured.sizes:
        record = measured.record(tp)
        compare(measured, f"{measured.name(tp)}, batched against alone", record.solo, record.batch, seen, findings)
    return evidence(measured, findings, _words(seen), seen, bounds(measured.limits.schedule), measured.sizes)


@claim("e2e.schedule.chunked")
def chunked(stack: Stack, context: Context) -> Evidence:
    """Chunks of half a window, and then the same prompts from the prefix cache. Only what the engine did counts: where
    it says no steps, took a prompt whole, or took nothing from the cache, nothing is proved."""
    measured = context.e2e
    seen: dict[str, dict[str, float]] = {}
    findings: list[Finding] = []
    tp = measured.sizes[-1]
    chunks, known = measured.chunked()
    for name, answers in ((f"in chunks of {measured.chunk}", chunks), ("from the prefix cache", known)):
        what = f"{measured.name(tp)}, {name}"
        compare(measured, what, measured.record(tp).solo, answers, seen, findings)
        seen[what]["tokens from the cache"] = sum(a.cached for a in answers)
        seen[what]["steps of the longest prompt"] = len(prefill(answers[-1], len(measured.prompts.short[-1])))
    if not findings and (lacking := unproved(measured.prompts.short, measured.chunk, chunks, known)):
        raise NotSupported(f"{measured.name(tp)}: answers are right, and {lacking}")
    return evidence(measured, findings, _words(seen), seen, bounds(measured.limits.schedule))


@claim("e2e.graph.parity")
def graphs(stack: Stack, context: Context) -> Evidence:
    """Replayed graphs against eager mode: a graph's batch is padded, so bits may change as they do in a batch."""
    measured = context.e2e
    seen: dict[str, dict[str, float]] = {}
    findings: list[Finding] = []
    tp = measured.sizes[-1]
    alone, batch = measured.graphed()
    record = measured.record(tp)
    for how, eager, graphed in (("", record.solo, alone), (", in a batch", record.batch, batch)):
        what = f"{measured.name(tp)}, from graphs against eager{how}"
        compare(measured, what, eager, graphed, seen, findings)
    return evidence(measured, findings, _words(seen), seen, bounds(measured.limits.schedule))


def unproved(prompts: Sequence[Sequence[int]], chunk: int, chunks: Sequence[Answer], known: Sequence[Answer]) -> str:
    """Why the answers show neither chunks nor cache; empty if they do."""
    longer = [(len(p), a) for p, a in zip(prompts, chunks, strict=True) if len(p) > chunk]
    if not longer:
        return f"no prompt is longer than a chunk of {chunk}"
    if not all(a.steps for _, a in longer):
        return "the engine does not say in which steps it computed them"
    for length, answer in longer:
        steps = prefill(answer, length)
        if len(steps) < 2 or max(steps) > chunk or sum(steps) + answer.cached != length:
            return f"a prompt of {length} tokens was computed in steps of {steps}: chunks of at most {chunk} were due"
    if not any(a.cached for a in known):
        return "no token came from the prefix cache: it was on, and never hit"
    return ""


def prefill(answer: Answer, length: int) -> list[int]:
    """The steps in which the prompt was computed: up to its length, less what came from the cache."""
    steps, left = [], length - answer.cached
    for step in answer.steps:
        if left <= 0:
            break
        steps.append(step)
        left -= step
    return steps


def _words(seen: dict[str, dict[str, float]]) -> str:
    return "; ".join(f"{what}: p99 {s['p99']:.3f}, gap {s['gap']:.3f}" for what, s in seen.items())
