"""The output projection: rotated back, group by group, with pad heads cut off and virtual groups that add nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import attention_bound
from references.bound import deviations
from suites.attention import output_weights as weights
from suites.attention.bench import Bench, D
from suites.attention.random_scenes import ALARM
from suites.loader import whole

#: Tokens; more than a tile of 64 where outputs are compared with their bounds, and those of them that are.
_TOKENS, _MANY, _SOME = 9, 70, (0, 1, 7, 8, 15, 16, 31, 32, 47, 63, 64, 65, 66, 67, 68, 69)
#: Calls of so few of the last tokens.
_FEW = (1, 2, 3, 4)


def _positions(bench: Bench, number: int, tokens: int = _TOKENS) -> torch.Tensor:
    at = torch.randint(0, weights.POSITIONS, (tokens,), generator=bench.rng(number))
    return at.to(bench.can.device)


def _random(bench: Bench, rank: int, tokens: int = _TOKENS) -> torch.Tensor:
    """(T, P, D) bfloat16; what lies in virtual and pad heads is finite and not zero."""
    o = torch.randn(tokens, bench.padded, D, generator=bench.rng(70 + rank)).bfloat16()
    return o.to(bench.can.device)


@claim("attention.output.groups")
def groups(stack: Stack, context: Context) -> Evidence:
    """Each output picks one channel of one head of one token: small integers, exact in BF16 and in E4M3."""
    bench, total = Bench(context, "output"), context.geometry.output_groups
    _, wide, hidden = weights.sizes(bench)
    outputs = torch.arange(hidden, device=bench.can.device)
    for rank in context.ranks:
        o = torch.randint(-15, 16, (_TOKENS, bench.padded, D), generator=bench.rng(80 + rank)).bfloat16()
        o = o.to(bench.can.device)
        with weights.opened(bench, weights.cut(bench, rank, weights.one_hot)) as run:
            got = run(o, _positions(bench, 81))
        due = torch.zeros(_TOKENS, hidden, dtype=torch.bfloat16, device=o.device)
        for local in range(bench.groups):
            group = rank * bench.groups + local
            if group >= total:
                continue
            mine = outputs[outputs % total == group]
            picks = weights.channels(bench, group)[weights.rows(bench, hidden)[mine.cpu()]].to(o.device)
            due[:, mine] = o[:, : bench.heads].reshape(_TOKENS, bench.groups, wide)[:, local, picks]
        words = "another group's, token's or channel's value"
        if (got.float() != got.float().round()).any():
            words = "no integer: zero weights add something to it (is E4M3's code 0 read as 0?)"
        bench.compare("outputs", got + 0.0, due + 0.0, words, rank, "output")
    return bench.evidence(f"{bench.groups} local groups answer with their own heads", "bit for bit")


@claim("attention.output.bound")
def bound(stack: Stack, context: Context) -> Evidence:
    """Random heads at random positions, blocks of 128 channels of very different size: rotated back, projected, mixed,
    outputs within their bounds, of some of many tokens and of a few alone."""
    bench, measured = Bench(context, "output"), {}
    at, hidden = weights.table(bench).to(bench.can.device), context.geometry.hidden_size
    allowed = deviations(len(context.ranks) * (len(_SOME) + sum(_FEW)) * hidden, ALARM)
    some = torch.tensor(_SOME, device=at.device)
    for rank in context.ranks:
        cut, factors = weights.uneven(bench, weights.of_rank(bench, rank, weights.random))
        o, positions = _random(bench, rank, _MANY), _positions(bench, 82, _MANY)
        o[:, : bench.heads] *= factors
        with weights.opened(bench, cut) as run:
            got, few = run(o, positions), {n: run(o[-n:].contiguous(), positions[-n:]) for n in _FEW}
        own = attention_bound.exact(o[some, : bench.heads])
        right = attention_bound.projected(own, positions[some], at, *cut.decoded(), bench.groups, bench.can.projection)
        limit = right.bound(allowed)
        worst = bench.within("(some token, output)", got[some], right.value, limit, rank)
        measured[f"rank {rank}"] = {"err/bound": round(worst, 4)} | {
            f"of {n} tokens": round(bench.within(f"{n} tokens alone", out, right.value[-n:], limit[-n:], rank), 4)
            for n, out in few.items()
        }
    return bench.evidence("the projection is right on every rank", "err/bound at most 1", measured, 1.0)


@claim("attention.output.inert")
def inert(stack: Stack, context: Context) -> Evidence:
    """Virtual heads hold anything finite, pad heads NaN, and no bit of the output moves; a real head moves it."""
    bench = Bench(context, "output")
    for rank in context.ranks:
        with weights.opened(bench, weights.of_rank(bench, rank, weights.random)) as run:
            _unmoved(bench, rank, run)
    return bench.evidence("virtual and pad heads contribute exactly nothing", "bit for bit")


def _unmoved(bench: Bench, rank: int, run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    real, positions, o = bench.real(rank), _positions(bench, 83), _random(bench, rank)
    clean = run(o, positions)
    virtual, pads = o.clone(), o.clone()
    virtual[:, real : bench.heads] = 100 * o[:, real : bench.heads] + 7
    pads[:, bench.heads :] = torch.nan
    for what, changed in (("virtual heads", virtual), ("NaN in pad heads", pads)):
        out = run(changed, positions)
        bench.compare(what, out + 0.0, clean + 0.0, "they contribute to the output", rank, "output")
    if not real:
        zero = torch.zeros_like(clean)
        bench.compare("virtual groups alone", clean + 0.0, zero, "zero weights must give exactly zero", rank, "output")
        return
    moved = o.clone()
    moved[:, real - 1] *= -1
    bench.compared += 1
    if torch.equal(run(moved, positions), clean):
        bench.find(f"rank {rank}, head {real - 1}", "another output", "the same bits", "a real head is not read", rank)


@claim("attention.output.recipe")
def recipe(stack: Stack, context: Context) -> Evidence:
    """DeepGEMM's recipe for this capability: (1, 128, 128) with FP32 scales, or (1, 1, 128) with packed UE8M0."""
    bench = Bench(context, "output")
    due, got = context.target.output_scales, bench.can.scales
    bench.compared += 1
    if got != due:
        bench.find("scales of wo_a", due, got or "none", "packed scales give NaN where FP32 is read (vLLM #48052)")
    return bench.evidence(f"scales are {got}", due, {"scales": got})


@claim("attention.output.loaded")
def loaded(stack: Stack, context: Context) -> Evidence:
    """Behind the model's groups the loaded wo_a rows and wo_b columns are zero, in every layer that is built."""
    bench = Bench(context)
    ranks = [rank for rank in context.ranks if bench.real(rank) < bench.heads]
    parts = [whole.tails(context.of_rank(rank), name) for rank in ranks for name in ("wo_a", "wo_b")]
    findings = [finding for part in parts for finding in part.findings]
    seen = [part.measured for part in parts]
    return Evidence(
        ok=all(part.ok for part in parts) and bool(seen) and all(seen),
        summary="; ".join(part.summary for part in parts),
        expected="zero",
        measured=seen,
        findings=findings,
        notes=parts[0].notes,
        method=parts[0].method,
    )
