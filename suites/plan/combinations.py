"""Which combinations the guard claims ask about, and how wrong answers are told: alike ones together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from conformance.context import Context
from conformance.result import Finding
from conformance.stacks.protocols import PlanOutcome
from conformance.target import Combination, platform

#: CUDA capabilities that a guard must tell apart; None: no CUDA.
PLATFORMS: tuple[tuple[int, int] | None, ...] = (None, (9, 0), (10, 0), (10, 3), (12, 0), (12, 1))
#: DeepGEMM MegaMoE, by the name that `--moe-backend` takes.
MEGA_MOE = "deep_gemm_mega_moe"
_MOST_NAMED = 6

Answer = tuple[Combination, PlanOutcome]


def others(context: Context) -> list[tuple[int, int] | None]:
    return [p for p in PLATFORMS if p != context.target.capability]


def vetted_pairs(context: Context) -> list[tuple[str, str]]:
    """Pairs that any profile vets, without its platform."""
    return list(dict.fromkeys((attention, moe) for _, attention, moe in context.target.vetted))


def every_pair(
    context: Context, capabilities: Iterable[tuple[int, int] | None], draft: bool = False
) -> list[Combination]:
    """All pairs of backends that the stack knows, on these platforms, less those that are vetted there."""
    known, vetted = context.known_backends(), set(context.target.vetted)
    return [
        Combination(attention, moe, capability, draft=draft)
        for capability in capabilities
        for moe in known.moe
        for attention in known.attention
        if (capability, attention, moe) not in vetted
    ]


def ask(context: Context, combinations: Sequence[Combination]) -> list[Answer]:
    return list(zip(combinations, context.guards(combinations), strict=True))


def words(outcome: PlanOutcome) -> str:
    return f"{outcome.outcome}: {outcome.message}" if outcome.message else outcome.outcome


def findings(
    answers: Iterable[Answer], expected: str, meaning: str, told: Callable[[PlanOutcome], str] = words
) -> list[Finding]:
    """One finding a platform, MoE backend and answer; the attention backends that share it are named in it."""

    def alike(answer: Answer) -> tuple[str, str, bool, bool, str]:
        asked, outcome = answer
        return platform(asked.capability), asked.moe, asked.expert_parallel, asked.draft, told(outcome)

    found = []
    for (_, _, _, _, got), group in groupby(sorted(answers, key=alike), alike):
        asked = [combination for combination, _ in group]
        first = asked[0]
        if len(asked) > 1:
            names = sorted(str(c.attention) for c in asked)
            listed = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
            where = first._replace(attention=f"any of {len(names)} ({listed})").words
        else:
            where = first.words
        found.append(Finding(where=where, expected=expected, got=got, meaning=meaning))
    return found


def lead(found: list[Finding], due: str) -> str:
    """A summary's words for wrong answers: how many kinds, and the first."""
    kinds = f"{len(found)} kind{'s' if len(found) > 1 else ''} of wrong answer"
    return f"{kinds}; {found[0].where}: {found[0].got}; {due} was due"


def counts(answers: Iterable[Answer]) -> dict[str, int]:
    """How often each outcome was met, and each message (without its numbers there are few of them)."""
    found: dict[str, int] = {}
    for _, outcome in answers:
        found[words(outcome)] = found.get(words(outcome), 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))
