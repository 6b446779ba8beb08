"""Random requests on every rank: what the kernel answers, and the FP64 reference with the bound derived for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.attention_protocol import Phase
from references import attention_bound
from references.attention import attend
from references.bound import Bounded, deviations
from suites.attention import scene
from suites.attention.bench import Bench, relative
from suites.attention.scene import Scene

RATIOS = (0, 4, 128)
ASKED: dict[Phase, tuple[tuple[int, int], ...]] = {"decode": scene.DECODE, "prefill": scene.PREFILL}
#: More queries than a tile has, in a window alone, and those among them that are compared.
_MANY, _SOME = ((300, 150),), (0, 15, 16, 31, 32, 63, 64, 65, 127, 128, 149)
#: Chance that a right kernel fails any one element of all that a claim compares.
ALARM = 1e-6


class Case(NamedTuple):
    phase: Phase
    rank: int
    scene: Scene
    got: torch.Tensor  # (T, P, D)
    due: Bounded  # (T, real heads, D)


def made(bench: Bench, ratio: int, phase: Phase, fill: scene.Fill = "stale", deal: int = 0) -> Scene:
    return scene.scene(bench.can, bench.context.target.seed + ratio, ratio, ASKED[phase], fill, deal)


def cases(context: Context, ratio: int) -> list[Case]:
    return context.once(f"attention.random {ratio}", lambda: _cases(Bench(context, "attend"), ratio))


def _cases(bench: Bench, ratio: int) -> list[Case]:
    found = []
    for phase in bench.can.phases:
        one = made(bench, ratio, phase)
        for rank in bench.context.ranks:
            call = bench.call(one, rank, phase)
            found.append(Case(phase, rank, one, bench.attend(call), known_due(bench, one, ratio, phase, rank)))
        found.append(_more(bench, ratio, phase))
    return found


def _more(bench: Bench, ratio: int, phase: Phase) -> Case:
    """Without compression many queries, of which some are compared; with it the one that sees most, alone in a call."""
    rank = bench.context.ranks[0]
    if ratio:
        one = made(bench, ratio, phase)
        row = int(one.positions.argmax())
        some, asked = [row], bench.of_tokens(bench.call(one, rank, phase), slice(row, row + 1))
        out = bench.attend(asked)
    else:
        one, some = scene.scene(bench.can, bench.context.target.seed, 0, _MANY), list(_SOME)
        whole = bench.call(one, rank, phase)
        out = bench.attend(whole)[some]
        asked = whole._replace(q=whole.q[some])
    few, real = one.only(torch.tensor(some, device=one.positions.device)), bench.real(rank)
    right = remembered(
        bench, ("more", ratio, phase), lambda: _within(bench, few, asked.q[:, :real], asked.sinks[:real])
    )
    return Case(phase, rank, few, out, right)


def _within(bench: Bench, one: Scene, q: torch.Tensor, sinks: torch.Tensor) -> Bounded:
    return attention_bound.attended(q, one.seen, sinks, bench.scale, one.keys, bench.can.probabilities)


def due(bench: Bench, one: Scene, rank: int) -> Bounded:
    """The rank's real heads alone, as if there were no others."""
    real = slice(bench.real(rank))
    q, sinks = bench.q(one, rank)[:, real], bench.sinks(rank)[real]
    return _within(bench, one, q, sinks)


#: By what it follows from: contexts of one process that differ in the kernel alone share it.
_KNOWN: dict[tuple[object, ...], Bounded] = {}


def remembered(bench: Bench, what: tuple[object, ...], make: Callable[[], Bounded]) -> Bounded:
    """What follows from geometry, size, seed, declared capabilities and `what` alone, made once a process."""
    g, t = bench.context.geometry, bench.context.target
    key = g.attention_heads, g.output_groups, t.tp, t.seed, bench.can, *what
    if key not in _KNOWN:
        while len(_KNOWN) >= 64:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[key] = make()
    return _KNOWN[key]


def known_due(bench: Bench, one: Scene, ratio: int, phase: Phase, rank: int) -> Bounded:
    return remembered(bench, (ratio, phase, rank), lambda: due(bench, one, rank))


def every_head(bench: Bench, one: Scene) -> torch.Tensor:
    """The unsharded layer's heads: (T, heads, D) FP64."""
    return attend(bench.every_q(one), one.seen, bench.every_sink(), bench.scale, one.keys)[0]


def judged(context: Context, ratio: int) -> Evidence:
    """Every element of the real heads within its bound, in every phase, on every rank."""
    bench, found = Bench(context, "attend"), cases(context, ratio)
    allowed = deviations(max(1, sum(case.due.value.numel() for case in found)), ALARM)
    measured, worst = {}, 0.0
    for case in found:
        real = case.got[:, : bench.real(case.rank)]
        ratio_ = bench.within(case.phase, real, case.due.value, case.due.bound(allowed), case.rank)
        worst = max(worst, ratio_)
        tokens = f"{len(case.scene.positions)} tokens"
        measured[f"rank {case.rank}, {case.phase}, {tokens}"] = {
            "err/bound": round(ratio_, 4),
            "relative": relative(real, case.due.value),
        }
    return bench.evidence(
        f"err/bound at most {worst:.3f} over {len(found)} calls",
        "err/bound at most 1",
        measured,
        bound=1.0,
        notes=[f"lambda {allowed:.2f}: one false alarm in {1 / ALARM:g} runs over all elements"],
    )
