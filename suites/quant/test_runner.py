"""A MoE runner, black-box: experts tell themselves by exact answers, routes by powers of two; then every stage, fed
with what the runner itself made before it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.stacks.runner_protocol import Stages
from conformance.suite import claim
from references import fused_swiglu, grouped_gemm, nvfp4
from suites.quant.bench import unpacked
from suites.quant.judge import Judge
from suites.quant.memory import peak
from suites.quant.operands import of_values
from suites.quant.runner_bench import TOKEN, Bench, Place, Weights, answers

_FIRST = 3
_MIB = 1 << 20


@claim("quant.moe.experts")
def experts(stack: Stack, context: Context) -> Evidence:
    """Ids of this rank, of others, -1 and ids of nobody; experts twice in a token; slots of weights 1, 1/2, 1/4 ...;
    experts of 0, 1, 128 and 129 tokens; tokens that are all another rank's."""
    bench = Bench(stack, context)
    w, own = bench.telling(bench.held)
    total = 2 * bench.held + _FIRST
    generator = bench.generator()
    choice = torch.tensor([-1, total, total + 5, *range(total), *range(_FIRST, _FIRST + bench.held)])
    mixed = choice[torch.randint(0, len(choice), (60, 4), generator=generator)]
    mixed[:6] = torch.tensor([-1, 0, total, _FIRST + bench.held])
    mixed[6:12, 1] = mixed[6:12, 0] = _FIRST + 1
    one, last = torch.full((129, 1), _FIRST + 1), torch.full((128, 1), _FIRST + bench.held - 1)
    scenes = {"mixed routes": mixed, "one expert of 129 tokens": one, "the last expert, 128 tokens": last}
    scenes["129 and 1"] = torch.cat([last, last[:1], torch.full((1, 1), _FIRST)])
    with bench.opened(w, Place(_FIRST, total)) as handle:
        for name, ids in scenes.items():
            weights = torch.exp2(-torch.arange(ids.shape[1]).float()).repeat(len(ids), 1)
            due = (answers(ids, own, _FIRST) * weights.double()).sum(1)
            got = bench.run(handle, bench.tokens(len(ids)), ids, weights)
            _compare(bench, name, got, due)
    return bench.evidence("each slot is answered by its own expert, and by none that the rank does not hold")


def _compare(bench: Bench, name: str, got: torch.Tensor, due: torch.Tensor) -> None:
    want = bench.rounded(due)[:, None].expand_as(got)
    bench.exact.same(name, got, want, lambda at: f"token {at[0]}, output {at[1]}")


@claim("quant.moe.weights")
def weights(stack: Stack, context: Context) -> Evidence:
    """A weight multiplies a slot's result, in float32: small slots that a sum in BF16 loses, wherever the large one
    stands, and weights that NVFP4 cannot carry through."""
    bench = Bench(stack, context)
    w, own = bench.telling(bench.held)
    slots = 4
    small = torch.full((slots, slots), 2.0**-9).fill_diagonal_(1.0)
    ids = torch.full((slots, slots), _FIRST)
    odd = torch.tensor([0.3, 0.71, 1.37, 0.0123])
    with bench.opened(w, Place(_FIRST, _FIRST + bench.held)) as handle:
        got = bench.run(handle, bench.tokens(slots), ids, small)
        _compare(bench, "1 and three times 2^-9", got, (answers(ids, own, _FIRST) * small.double()).sum(1))
        ids = torch.full((len(odd), 1), _FIRST)
        got = bench.run(handle, bench.tokens(len(odd)), ids, odd[:, None])
        _compare(bench, "weights of no power of two", got, own[0] * odd.double())
    return bench.evidence("weights go in behind the last GEMM, and sums are float32's")


@claim("quant.moe.clamp")
def clamp(stack: Stack, context: Context) -> Evidence:
    """All pairs of gate and up out of -2 L, -L, -L / 2, 0, L / 2, L, 2 L, alike in every channel."""
    bench = Bench(stack, context)
    _clamped(bench, lambda handle, x: bench.run(handle, x, torch.zeros(len(x), 1), torch.ones(len(x), 1)))
    return bench.evidence("gate clamped from above, up on both sides, before SiLU and before it is quantised")


def _clamped(bench: Bench, call: Callable[[object, torch.Tensor], torch.Tensor]) -> None:
    steps = torch.tensor([-4.0, -2, -1, 0, 1, 2, 4])
    pairs = torch.cartesian_prod(steps, steps)
    i, h = bench.intermediate, bench.hidden
    w13, w2 = torch.zeros(1, 2 * i, h), torch.zeros(1, h, i)
    w13[0, :i, : len(pairs)], w13[0, i:, : len(pairs)] = pairs.T[:, None]
    w2[0, torch.arange(h), torch.arange(h) % i] = 1
    x = torch.zeros(len(pairs), h, dtype=torch.bfloat16)
    x[torch.arange(len(pairs)), torch.arange(len(pairs))] = TOKEN
    for limit in (8.0, 1.0, None):
        scale = (limit or 8.0) / (2 * TOKEN)
        w = Weights(of_values(w13, "nvfp4"), torch.full((1, 2), scale), of_values(w2, "nvfp4"), torch.ones(1))
        place = Place(0, 1, limit, activation_scale=(limit or 16.0) ** 2 / 1024)
        with bench.opened(w, place) as handle:
            got = call(handle, x)
        due = fused_swiglu.bounded(
            x.double(), w.gate_up(0), limit, "bfloat16", bench.can.accumulation, bench.can.rounding == "bf16_h"
        )
        low, high = (
            nvfp4.rounded(due.exact + sign * due.radius, place.activation_scale)[:, torch.arange(h) % i]
            for sign in (-1, 1)
        )
        slack = 2 * grouped_gemm.ROUNDOFF[bench.can.output]
        low, high = low - slack * low.abs(), high + slack * high.abs()
        bench.exact.inside(f"limit {limit}", got, low, high, lambda at: f"gate and up {pairs[at[0]].tolist()} L / 2")


@claim("quant.moe.stages")
def stages(stack: Stack, context: Context) -> Evidence:
    """Random weights, tokens and routes. Each stage is held to the one before it as the runner itself made it: no error
    adds up, and none hides behind another."""
    bench = Bench(stack, context, "stages")
    w, total = bench.random(bench.held), bench.held + 7
    generator = bench.generator(1)
    x = torch.randn(33, bench.hidden, generator=generator).bfloat16()
    ids = torch.randint(-1, total, (33, 3), generator=generator)
    routing = torch.rand(33, 3, generator=generator)
    for limit in (None, 1.5):
        place = Place(_FIRST, total, limit, nvfp4.own_global_scale(x), 0.37 / 64)
        with bench.opened(w, place) as handle:
            told = bench.runner.stages(handle, *bench.on_device(x, ids.int(), routing))
        _staged(bench, f"limit {limit}", w, place, (x, ids, routing), told)
    return bench.evidence("every stage is right, given the one before")


def _staged(bench: Bench, name: str, w: Weights, place: Place, given: tuple[torch.Tensor, ...], told: Stages) -> None:
    x, ids, routing = given
    exact, can = bench.exact, bench.can
    judge = Judge(exact, can.rules)
    token, slot, activation, y, out = (t.cpu() for t in (told.token, told.slot, told.activation, told.y, told.out))
    q, again = (one._replace(codes=one.codes.cpu(), scales=one.scales.cpu()) for one in (told.x, told.quantized))
    expert = ids - place.first
    local = (expert >= 0) & (expert < bench.held)
    answered = torch.zeros_like(ids)
    answered.index_put_((token, slot), torch.ones_like(token), accumulate=True)
    exact.same(f"{name}: times that a slot is answered", answered, local.long())
    if not torch.equal(answered, local.long()):
        return
    asked = (q.global_scale, again.global_scale)
    exact.true(f"{name}: global scales", asked == place[3:], str(place[3:]), str(asked))
    judge.interval(f"{name}: input", x[token], q)
    judge.interval(f"{name}: activation, quantised", activation, again)
    seen, seen_again = (
        nvfp4.dequantize(nvfp4.Nvfp4(unpacked("nvfp4", one), one.scales), one.global_scale) for one in (q, again)
    )
    slots = torch.zeros(*ids.shape, x.shape[1], dtype=torch.float64)
    for e in range(bench.held):
        mine = expert[token, slot] == e
        due = fused_swiglu.bounded(
            seen[mine], w.gate_up(e), place.limit, "bfloat16", can.accumulation, can.rounding == "bf16_h"
        )
        where = f"{name}, expert {e}"
        exact.inside(f"{where}: activation", activation[mine].double(), due.exact - due.radius, due.exact + due.radius)
        due = grouped_gemm.matmul(seen_again[mine], w.down(e), can.slot, can.accumulation)
        exact.inside(f"{where}: result", y[mine].double(), due.exact - due.radius, due.exact + due.radius)
    slots[token, slot] = y.double()
    terms = slots * routing.double()[..., None]
    radius = grouped_gemm.ROUNDOFF[can.output] * terms.sum(1).abs() + 2.0**-22 * terms.abs().sum(1)
    exact.inside(f"{name}: sum of slots", out.double(), terms.sum(1) - radius, terms.sum(1) + radius)


@claim("quant.moe.ranks")
def ranks(stack: Stack, context: Context) -> Evidence:
    """Experts dealt out to two ranks add up to all of them on one; tokens in another order, alone, and asked for again
    keep their bits; no tokens, one, and one after the most; more than that is an error."""
    bench = Bench(stack, context)
    exact, held = bench.exact, bench.held
    split = held // 2
    w, generator = bench.random(held), bench.generator(2)
    count = min(bench.can.tokens, 40)
    x = torch.randn(count, bench.hidden, generator=generator).bfloat16()
    ids = torch.randint(0, held, (count, 3), generator=generator)
    routing = torch.rand(count, 3, generator=generator)
    place = Place(0, held, 10.0, nvfp4.own_global_scale(x), 0.37 / 64)
    parts = []
    for first, last in ((0, split), (split, held)):
        with bench.opened(w.part(first, last), place._replace(first=first)) as handle:
            parts.append(bench.run(handle, x, ids, routing))
    with bench.opened(w, place) as handle:
        whole = bench.run(handle, x, ids, routing)
        slack = grouped_gemm.ROUNDOFF[bench.can.output] * (whole.abs() + parts[0].abs() + parts[1].abs()) * 1.01
        exact.inside("two ranks added up", parts[0] + parts[1], whole - slack, whole + slack)
        if bench.can.deterministic:
            order = torch.randperm(count, generator=generator)
            exact.same("in another order", bench.run(handle, x[order], ids[order], routing[order]), whole[order])
            alone = torch.cat([bench.run(handle, x[n : n + 1], ids[n : n + 1], routing[n : n + 1]) for n in (0, 17)])
            exact.same("alone", alone, whole[[0, 17]])
        most = bench.can.tokens
        many = [t.repeat(-(-(most + 1) // count), 1)[: most + 1] for t in (x, ids, routing)]
        exact.true("no tokens", bench.run(handle, x[:0], ids[:0], routing[:0]).shape == (0, bench.hidden), "", "")
        bench.run(handle, *(t[:most] for t in many))
        after = bench.run(handle, x[:1], ids[:1], routing[:1] * 0)
        exact.same(f"one token of weight 0 after {most}", after, torch.zeros_like(after))
        exact.raises(f"{most + 1} tokens", lambda: bench.run(handle, *many), f"{most} are the most")
    return bench.evidence("ranks add up, and no token depends on another")


@claim("quant.moe.isolation")
def isolation(stack: Stack, context: Context) -> Evidence:
    """Padding as graphs have it: rows of NaN whose slots are all empty, and NaN for the weights of empty slots. Such
    rows answer zeros, and the others keep their bits. A NaN in a token that is routed stays in its own row."""
    bench = Bench(stack, context)
    w, generator = bench.random(bench.held), bench.generator(6)
    count = 24
    x = torch.randn(count, bench.hidden, generator=generator).bfloat16()
    ids = torch.randint(0, bench.held, (count, 3), generator=generator)
    ids[3:8, 1] = -1
    routing = torch.rand(count, 3, generator=generator)
    with bench.opened(w, Place(0, bench.held, 10.0, nvfp4.own_global_scale(x), 0.37 / 64)) as handle:
        clean = bench.run(handle, x, ids, routing)
        bench.exact.true("answers", bool(clean.any(1).all()), "something in every row", "a row of zeros")
        routing[3:8, 1] = torch.nan
        bench.exact.same("NaN weights of empty slots", bench.run(handle, x, ids, routing), clean)
        nobody = [
            torch.full((5, bench.hidden), torch.nan).bfloat16(),
            torch.full((5, 3), -1),
            torch.full((5, 3), torch.nan),
        ]
        got = bench.run(handle, *(torch.cat(pair) for pair in zip((x, ids, routing), nobody, strict=True)))
        bench.exact.same("rows before rows of NaN", got[:count], clean)
        bench.exact.same("rows of NaN, of nobody", got[count:], torch.zeros(5, bench.hidden).double())
        x[7, 11] = torch.nan
        others = torch.arange(count) != 7
        got = bench.run(handle, x, ids, routing)
        bench.exact.same("rows beside a NaN", got[others], clean[others])
    return bench.evidence("what belongs to nobody reaches nobody")


@claim("quant.moe.counting")
def counting(stack: Stack, context: Context) -> Evidence:
    """384 experts, 8192 tokens of 6 slots: counts and starts are exact, and no more than 16 MiB are taken for them (a
    table of slots by experts in booleans is 18 MiB)."""
    bench = Bench(stack, context, "count")
    exact, generator = bench.exact, bench.generator(3)
    for number, tokens in ((384, 8192), (384, 1), (3, 64), (8, 0)):
        ids = torch.randint(-1, number + 2, (tokens, 6), generator=generator).int()
        on_device = ids.to(bench.can.device)
        if tokens == 8192:
            bench.runner.count(on_device[:1], number)  # what is made once is no part of it
        (counts, starts), taken = peak(lambda given=on_device, n=number: bench.runner.count(given, n))  # type: ignore[misc]
        want = torch.tensor([int((ids == e).sum()) for e in range(number)])
        what = f"{tokens} tokens, {number} experts"
        exact.same(f"{what}: count", counts.cpu().long(), want, show="d")
        exact.same(f"{what}: start", starts.cpu().long(), torch.cat([torch.zeros(1).long(), want.cumsum(0)]), show="d")
        exact.true(f"{what}: memory", taken <= 16 * _MIB, "16 MiB at most", f"{taken / _MIB:.1f} MiB")
    return bench.evidence("counted exactly, in little memory")


@claim("quant.moe.shared")
def shared(stack: Stack, context: Context) -> Evidence:
    """Every token, no routing weight, no routed scaling factor; the limit holds here too; counts beside a tile."""
    bench = Bench(stack, context, "shared")

    def call(handle: object, x: torch.Tensor) -> torch.Tensor:
        out = bench.out(x)
        bench.runner.shared(handle, *bench.on_device(x), out)
        return out.cpu().double()

    w, own = bench.telling(1)
    with bench.opened(w, Place(0, 1)) as handle:
        for count in (1, 127, 128, 129):
            _compare(bench, f"{count} tokens", call(handle, bench.tokens(count)), own.repeat(count))
    _clamped(bench, call)
    w = bench.random(1)
    x = torch.randn(129, bench.hidden, generator=bench.generator(4)).bfloat16()
    with bench.opened(w, Place(0, 1, 10.0, nvfp4.own_global_scale(x), 0.37 / 64)) as handle:
        got, routed = call(handle, x), bench.run(handle, x, torch.zeros(129, 1), torch.ones(129, 1))
    bench.exact.same("beside the routed path with one expert", got, routed)
    return bench.evidence("the shared expert is one expert of weight 1, limit and all")
