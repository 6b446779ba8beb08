"""The guards of virtual TP. A refusal is an error that says why; no error and no plan is silence, and a third thing."""

from __future__ import annotations

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from conformance.target import Combination, platform
from suites.plan.combinations import (
    MEGA_MOE,
    Answer,
    ask,
    counts,
    every_pair,
    findings,
    lead,
    others,
    vetted_pairs,
    words,
)


def _judged(answers: list[Answer], wrong: list[Finding], asked: str, due: str) -> Evidence:
    """`due` is what every answer should be."""
    return Evidence(
        ok=not wrong,
        summary=lead(wrong, wrong[0].expected) if wrong else f"{asked}: {len(answers)} asked, {due}",
        expected=due,
        measured=counts(answers),
        findings=wrong,
    )


def _must_refuse(context: Context, asked: list[Combination], what: str, meaning: str) -> Evidence:
    answers = ask(context, asked)
    wrong = [(c, o) for c, o in answers if o.outcome != "refused"]
    silent = [(c, o) for c, o in answers if o.outcome == "refused" and not o.message]
    found = findings(wrong, "refused", meaning)
    found += findings(silent, "a reason", "an error that names no reason helps nobody", lambda _: "an empty message")
    return _judged(answers, found, what, "refused")


@claim("plan.guard.vetted")
def vetted(stack: Stack, context: Context) -> Evidence:
    """A vetted pair of which the stack knows no backend by that name is left out, unless none is left."""
    t = context.target
    answers = ask(context, [Combination(attention, moe, t.capability) for attention, moe in t.vetted_here])
    known = [(c, o) for c, o in answers if o.padding != "unknown-backend"]
    unknown = [f"{c.words}: {o.message}" for c, o in answers if o.padding == "unknown-backend"]
    if not known:
        raise NotSupported(f"the stack knows none of the vetted pairs: {'; '.join(unknown)}")
    wrong = [(c, o) for c, o in known if o.outcome != "accepted"]
    meaning = "the stack's own validation rejects what the profile vets"
    evidence = _judged(known, findings(wrong, "accepted", meaning), "vetted pairs", "accepted")
    evidence.notes = [f"not asked: {line}" for line in unknown]
    return evidence


@claim("plan.guard.pairs")
def pairs(stack: Stack, context: Context) -> Evidence:
    """All pairs that the stack knows, on the profile's capability, less the vetted ones."""
    asked = every_pair(context, [context.target.capability])
    meaning = "nobody has vetted this pair for padded axes; a broad fallback lets it through"
    return _must_refuse(context, asked, f"other pairs on {platform(context.target.capability)}", meaning)


@claim("plan.guard.platforms")
def platforms(stack: Stack, context: Context) -> Evidence:
    """All pairs that the stack knows, on every other platform, less those that the platform's own profile vets."""
    asked = every_pair(context, others(context))
    meaning = "nobody has vetted padded axes on this platform"
    return _must_refuse(context, asked, "any pair on other platforms", meaning)


@claim("plan.guard.silent")
def silent(stack: Stack, context: Context) -> Evidence:
    """A configuration without error and without plan anywhere; and, for the vetted pairs on platforms that do not vet
    them, a padding layer that does nothing and leaves it to a later, general check to notice."""
    t = context.target
    asked = every_pair(context, [t.capability, *others(context)])
    answers = ask(context, asked)
    meaning = "no error and no plan: it would load wrong weights"
    wrong = findings([(c, o) for c, o in answers if o.outcome == "ignored"], "an error", meaning)
    elsewhere = [a for a in answers if (a[0].attention, a[0].moe) in vetted_pairs(context)]
    passed_over = [(c, o) for c, o in elsewhere if o.outcome == "refused" and o.padding == "nothing"]
    wrong += findings(
        passed_over,
        "an error of the padding layer",
        "the padding layer does not know this platform and says nothing: only an unrelated check stands in the way",
        lambda o: f"silently ignored by the padding layer; a later check says {o.message}",
    )
    return _judged(answers, wrong, "every pair on every platform", "answered for")


@claim("plan.guard.expert_parallel")
def expert_parallel(stack: Stack, context: Context) -> Evidence:
    """With virtual TP: refused, for every vetted pair. Without, and where experts alone would need it (dealt out whole,
    they are not cut): accepted, for the run's own pair."""
    t = context.target
    if context.virtual_beside_experts:
        own = t.vetted_here or vetted_pairs(context)
        asked = [Combination(attention, moe, t.capability, expert_parallel=True) for attention, moe in own]
        return _must_refuse(context, asked, "expert parallelism", "padded experts are cut across ranks, not dealt out")
    answers = ask(context, [Combination(t.attention, t.backend, t.capability, expert_parallel=True)])
    wrong = [(c, o) for c, o in answers if o.outcome != "accepted"]
    meaning = "the profile asks for expert parallelism where nothing needs virtual TP"
    return _judged(answers, findings(wrong, "accepted", meaning), "expert parallelism", "accepted")


@claim("plan.guard.megamoe")
def megamoe(stack: Stack, context: Context) -> Evidence:
    """MegaMoE beside each vetted attention backend, alone and with the expert parallelism that it wants (which leaves
    nothing to pad where experts alone need padding: not asked then)."""
    t = context.target
    parallel = (False, True) if context.virtual_beside_experts else (False,)
    attentions = sorted({attention for attention, _ in t.vetted_here or vetted_pairs(context)})
    asked = [Combination(attention, MEGA_MOE, t.capability, ep) for attention in attentions for ep in parallel]
    evidence = _must_refuse(context, asked, "MegaMoE", "MegaMoE takes whole experts, and no padded shares of them")
    evidence.notes = [f"{c.words}: {words(o)}" for c, o in ask(context, asked)]
    return evidence
