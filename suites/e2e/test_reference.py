"""Every size against the plain PyTorch implementation: what is wrong at all sizes alike shows here alone."""

from __future__ import annotations

from conformance.context import Context
from conformance.e2e import blame, distance
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.e2e.telling import bounds, evidence, within


@claim("e2e.reference.logprobs")
def logprobs(stack: Stack, context: Context) -> Evidence:
    """The same sequences in full precision: quantiles of |difference| over the engine's top 20."""
    measured, seen, findings = context.e2e, {}, []
    clean, truth = measured.limits.reference, measured.truth
    for tp in measured.sizes:
        forced = measured.record(tp).forced
        spread = distance.spread([distance.exactly(a, b) for a, b in zip(forced, truth, strict=True)])
        seen[measured.name(tp)] = spread._asdict()
        if not within(spread, clean):
            due = " and ".join(f"{name} within {value:g}" for name, value in bounds(clean).items())
            findings.append(Finding(f"{measured.name(tp)} against full precision", due, spread.words))
    right = "; ".join(f"{size}: p99 {s['p99']:.3f}, max {s['max']:.3f}" for size, s in seen.items())
    return evidence(measured, findings, right, seen, bounds(clean), measured.sizes)


@claim("e2e.reference.blocks")
def blocks(stack: Stack, context: Context) -> Evidence:
    """Each block alone: the reference is given the engine's own input of it."""
    measured, seen, findings = context.e2e, {}, []
    limits = measured.limits
    for tp in measured.sizes:
        found = blame.errors(measured, tp)
        seen[measured.name(tp)] = {module: round(error, 5) for module, (error, _) in found.items()}
        for module, (error, token) in found.items():
            most = limits.block(module)
            if not error <= most:
                where = f"{measured.name(tp)}, {module}, worst at token {token}"
                findings.append(Finding(where, f"a relative error of at most {most:.3g}", f"{error:.3g}"))
        if not found:
            findings.append(Finding(measured.name(tp), "what goes into and out of each block", "nothing was traced"))
    return evidence(measured, findings, "every block of every layer is the reference's", seen, limits.blocks)
