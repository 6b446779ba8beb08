"""The draft (MTP) model: planned, guarded and quantized as its target is."""

from __future__ import annotations

from conformance import expected
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import PlanOutcome, Stack
from conformance.suite import claim
from conformance.target import Combination
from suites.plan.combinations import MEGA_MOE, Answer, ask, counts, every_pair, findings, lead, others, vetted_pairs

#: Where a scheme says that nothing is quantized, in whatever words.
_UNQUANTIZED = ("none", "unquantized")


@claim("plan.draft.axes")
def axes(stack: Stack, context: Context) -> Evidence:
    """Every axis that the draft's plan or configuration tells, against what is due for the target. With virtual TP
    all axes must be told; without, those that the draft's configuration holds."""
    t = context.target
    (outcome,) = context.guards([Combination(t.attention, t.backend, t.capability, draft=True)])
    if outcome.axes is None:
        raise NotSupported(
            f"the stack makes no plan for the draft: {outcome.message or 'no virtual tensor parallelism'}"
        )
    due = expected.axes(t.geometry, t.tp, context.virtual)
    if context.padded and (missing := sorted(set(due) - set(outcome.axes))):
        raise NotSupported(f"the draft's plan does not tell its {', '.join(missing)}")
    wrong = [
        Finding(
            where=f"{name} axis of the draft",
            expected=f"{axis.original} -> {axis.padded}, {axis.per_rank} a rank",
            got=f"{got.original} -> {got.padded}, {got.per_rank} a rank",
            meaning="draft and target share weights and KV caches: their ranks must be cut alike",
        )
        for name, axis in due.items()
        if (got := outcome.axes.get(name)) is not None and got != axis
    ]
    told = ", ".join(f"{name} {axis.per_rank}" for name, axis in outcome.axes.items())
    return Evidence(
        ok=not wrong,
        summary=f"{wrong[0].where}: {wrong[0].got}; {wrong[0].expected} was due" if wrong else f"a rank: {told}",
        expected={name: [a.original, a.padded, a.per_rank] for name, a in due.items() if name in outcome.axes},
        measured={name: [a.original, a.padded, a.per_rank] for name, a in outcome.axes.items()},
        findings=wrong,
    )


def _deed(outcome: PlanOutcome) -> str:
    if outcome.padding == "planned":
        return f"the draft is padded (the whole configuration is {outcome.outcome})"
    return f"{outcome.outcome}: {outcome.message}" if outcome.message else outcome.outcome


@claim("plan.draft.guard")
def guard(stack: Stack, context: Context) -> Evidence:
    """Vetted pairs with a draft are accepted; for every other pair, for vetted pairs on other platforms, for expert
    parallelism (where axes stay to pad) and MegaMoE, the configuration is refused, the draft's own not padded.
    """
    t = context.target
    own = [Combination(attention, moe, t.capability, draft=True) for attention, moe in t.vetted_here]
    good = [(c, o) for c, o in ask(context, own) if o.padding != "unknown-backend"]
    forbidden = every_pair(context, [t.capability], draft=True)
    forbidden += [c._replace(expert_parallel=True) for c in own if context.virtual_beside_experts]
    forbidden += [c._replace(moe=MEGA_MOE) for c in own]
    forbidden += [
        Combination(attention, moe, capability, draft=True)
        for capability in others(context)
        for attention, moe in vetted_pairs(context)
        if (capability, attention, moe) not in t.vetted
    ]
    bad = ask(context, list(dict.fromkeys(forbidden)))

    def spared(answer: Answer) -> bool:
        return answer[1].outcome == "refused" and answer[1].padding != "planned"

    refused = [answer for answer in good if answer[1].outcome != "accepted"]
    wrong = findings(
        [a for a in bad if not spared(a)],
        "refused, and the draft not padded",
        "the draft is padded with no guard of its own",
        _deed,
    )
    wrong += findings(refused, "accepted", "the draft is refused where the target is vetted", _deed)
    asked = len(good) + len(bad)
    return Evidence(
        ok=not wrong,
        summary=lead(wrong, wrong[0].expected) if wrong else f"{asked} asked with a draft: guarded as without one",
        expected="accepted where vetted; elsewhere refused, and the draft not padded",
        measured=counts([*good, *bad]),
        findings=wrong,
    )


@claim("plan.draft.quant")
def quant(stack: Stack, context: Context) -> Evidence:
    """By the prefixes of the draft's layers (behind the last layer of the target). The draft's own projections are
    linear layers of the same checkpoint, and so take the scheme of the target's."""
    target, draft = context.schemes(draft=False), context.schemes(draft=True)
    if not target:
        raise NotSupported("the stack resolves no quantization scheme for the target")
    linear = next(iter(target.values()))
    due = {name: target.get(name, linear) for name in draft} | target
    wrong = [
        Finding(
            where=f"{name} of the draft",
            expected=scheme,
            got=draft.get(name, "not told"),
            meaning="its checkpoint tensors would be read as another type",
        )
        for name, scheme in due.items()
        if draft.get(name) != scheme
    ]
    wrong += [
        Finding(where=f"{name} of the draft", expected="a quantization scheme", got=scheme)
        for name, scheme in draft.items()
        if scheme == due[name] and scheme.lower().startswith(_UNQUANTIZED)
    ]
    told = "; ".join(f"{name} {scheme}" for name, scheme in draft.items())
    return Evidence(
        ok=not wrong,
        summary=f"{wrong[0].where}: {wrong[0].got}; {wrong[0].expected} was due" if wrong else told,
        expected=due,
        measured=draft,
        findings=wrong,
    )
