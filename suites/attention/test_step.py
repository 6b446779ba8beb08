"""Who sees what, where the stack finds it out itself: window, compressed entries, pages, requests, chunks.

Probes are read off: with zero queries and no sinks every seen token weighs the same, and token n of a request is 1 in
channel n % 448, 0 elsewhere, and 1 in a channel of its request's: the output tells how many of each were attended to.
"""

from __future__ import annotations

from functools import partial

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.attention_protocol import StepCall
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import attention_bound, attention_cache, attention_seen
from references.bound import Bounded, deviations
from suites.attention import scene
from suites.attention.bench import Bench, bits
from suites.attention.random_scenes import ALARM, RATIOS, remembered
from suites.attention.scene import WINDOW, Scene

#: (tokens, queries): around the window, pages of 64, entries of 4 and of 128; one request without a token in the call;
#: one with pages past the 128th, 512 selected entries and 66 of C128; neighbours, fewer than a tile of 32 and more.
_EDGES = (
    *((length, 1) for length in (1, 2, 3, 4, 5, 64, 65, 127)),
    (200, 0),
    *((length, 1) for length in (128, 129, 130, 255, 256, 257, 384, 640, 8450)),
    (133, 9),
    (290, 40),
)
#: Odd chunks of one request of 143 tokens, beside another of 37 that comes whole.
_CHUNKS = (1, 3, 5, 118, 1, 2, 13)
_LONG, _SHORT = sum(_CHUNKS), 37
_NOPE = attention_cache.NOPE


def _call(bench: Bench, one: Scene, q: torch.Tensor, sinks: torch.Tensor) -> StepCall:
    entries = one.compressed
    return StepCall(
        q,
        sinks,
        bench.scale,
        one.positions,
        one.requests,
        one.lengths,
        WINDOW,
        one.window.pages,
        one.window.table,
        one.ratio,
        entries.pages if entries else None,
        entries.table if entries else None,
        one.selected,
    )


def _step(bench: Bench, call: StepCall) -> torch.Tensor:
    out = bench.guarded(call.q.shape, torch.bfloat16, "out")
    bench.kernel.step(call, out)
    return out


def _coded(bench: Bench, ratio: int) -> Scene:
    """The caches hold position codes: of the window, or of the entries alone (the window is zeros then)."""
    one = scene.scene(bench.can, bench.context.target.seed, ratio, _EDGES, deal=7)
    for paged, every in ((one.window, 1), (one.compressed, ratio)):
        if paged is None:
            continue
        for request, (length, count) in enumerate(_EDGES):
            start = scene.first_kept(length, count) if every == 1 else 0
            number = torch.arange(start, length // every, device=paged.pages.data.device)
            of = torch.full_like(number, request, dtype=torch.int32)
            slots = attention_seen.slots(number[:, None], of, paged.table, paged.pages.tokens)[:, 0]
            values = torch.zeros(len(number), _NOPE + 64, device=slots.device)
            if paged is one.compressed or not ratio:
                values[number - start, number % _NOPE] = 1
                values[:, _NOPE + request] = 1
            attention_cache.put(paged.pages.data, slots, paged.pages.tokens, values, one.fp8)
    return one


def _read(bench: Bench, ratio: int, what: str) -> None:
    """What each query attended to against what is due, code by code."""
    one = _coded(bench, ratio)
    numbers = one.compressed_numbers() if ratio else one.window_numbers()
    tokens = len(one.positions)
    q = torch.zeros(tokens, bench.padded, 512, dtype=torch.bfloat16, device=one.positions.device)
    out = _step(bench, _call(bench, one, q, torch.full((bench.padded,), -torch.inf, device=q.device)))[:, 0].double()
    # A seen token weighs 1 / (tokens seen), and BF16 is off by far less than half of that.
    counts = out * torch.cat([slots for _, slots in one.slots()], 1).ge(0).sum(1, keepdim=True)
    due = torch.zeros(tokens, _NOPE, dtype=torch.float64, device=out.device)
    due.scatter_add_(1, numbers.clamp(min=0) % _NOPE, (numbers >= 0).double())
    for token, (position, request) in enumerate(zip(one.positions.tolist(), one.requests.tolist(), strict=True)):
        got = counts[token, :_NOPE].round()
        strangers = (counts[token, _NOPE:] > 0.5).nonzero().flatten().tolist()
        strangers = [r for r in strangers if r != request]
        bench.compared += _NOPE
        where = f"{what}, position {position} of request {request}"
        if bad := bool(out[token].isnan().any()):
            bench.find(where, "a number", "NaN", "unseen memory is read")
        elif (got != due[token]).any():
            more, less = ((got > due[token]).nonzero(), (got < due[token]).nonzero())
            codes = f"of codes {more.flatten().tolist()[:6]} too many, of {less.flatten().tolist()[:6]} too few"
            bench.find(where, f"{int(due[token].sum())} seen", f"{int(got.sum())} seen", codes)
        if strangers and not bad:
            bench.find(where, "its own tokens alone", f"tokens of requests {strangers[:4]}", "requests see each other")


@claim("attention.step.window")
def window(stack: Stack, context: Context) -> Evidence:
    """The last 128 positions, oneself included: 127, 128 and 129 tokens, page boundaries, requests of one token."""
    bench = Bench(context, "step")
    _read(bench, 0, "window")
    return bench.evidence(f"{len(_EDGES)} requests see their windows, and no more", "the window's tokens, read off")


@claim("attention.step.entries")
def entries(stack: Stack, context: Context) -> Evidence:
    """Entries that are complete: (p + 1) // 128 of C128, of C4 the selected ones, where fewer than k end in -1."""
    bench = Bench(context, "step")
    for ratio in (4, 128):
        _read(bench, ratio, f"C{ratio}")
    return bench.evidence(f"{len(_EDGES)} requests see their complete entries, and no more", "entries, read off")


def _random(bench: Bench, one: Scene, rank: int) -> StepCall:
    return _call(bench, one, bench.q(one, rank), bench.sinks(rank))


@claim("attention.step.requests")
def requests(stack: Stack, context: Context) -> Evidence:
    """Two requests in a batch: the tokens of one are changed, and no bit of the other's answer moves; its own does."""
    bench, rank = Bench(context, "step"), context.ranks[0]
    real = bench.real(rank)
    for ratio in RATIOS:
        asked = ((_LONG, 3), (_LONG + 150, 2))
        one = scene.scene(bench.can, context.target.seed + ratio, ratio, asked)
        clean = _step(bench, _random(bench, one, rank))[:, :real]
        for victim, mine in ((0, one.requests == 0), (1, one.requests == 1)):
            other = scene.scene(bench.can, context.target.seed + ratio, ratio, asked)
            for paged in filter(None, (other.window, other.compressed)):
                used = paged.table[1 - victim].unique().long()
                used = used[used != int(paged.pages.data.shape[0]) - 1]
                data = paged.pages.data[used]
                data[:, : paged.pages.tokens * (576 if other.fp8 else 1024)] ^= 0x80
                paged.pages.data[used] = data
            out = _step(bench, _random(bench, other, rank))[:, :real]
            where = f"C{ratio}, request {victim} while the other changes"
            bench.compare(where, out[mine], clean[mine], "requests see each other", rank)
            bench.compared += 1
            if torch.equal(bits(out[~mine]), bits(clean[~mine])):
                bench.find(
                    f"C{ratio}, request {1 - victim}", "another answer", "the same bits", "its tokens are not read"
                )
    return bench.evidence("requests in a batch do not see each other", "bit for bit")


def _due(bench: Bench, one: Scene, q: torch.Tensor, sinks: torch.Tensor, real: slice) -> Bounded:
    return attention_bound.attended(q[:, real], one.seen, sinks[real], bench.scale, one.keys, bench.can.probabilities)


@claim("attention.step.chunks")
def chunks(stack: Stack, context: Context) -> Evidence:
    """A request in odd chunks, beside one that comes whole, is answered like the reference, token by token."""
    bench, rank, measured = Bench(context, "step"), context.ranks[0], {}
    real, total = slice(bench.real(rank)), _LONG + _SHORT
    allowed = deviations(len(RATIOS) * total * real.stop * 512, ALARM)
    for ratio in RATIOS:
        at, worst = 0, 0.0
        for number, size in enumerate(_CHUNKS):
            at += size
            beside = ((_SHORT, _SHORT),) if number == 2 else ()
            one = scene.scene(bench.can, context.target.seed + at, ratio, ((at, size), *beside))
            call = _random(bench, one, rank)
            out = _step(bench, call)[:, real]
            some = torch.tensor(sorted({0, 1, size // 2, size - 1, len(out) - 2, len(out) - 1} & {*range(len(out))}))
            some = some.to(out.device)
            few = one.only(some)
            right = remembered(
                bench, ("chunks", ratio, number), partial(_due, bench, few, call.q[some], call.sinks, real)
            )
            where = f"C{ratio}, chunk {number} of {size} tokens up to {at}, some of its tokens"
            worst = max(worst, bench.within(where, out[some], right.value, right.bound(allowed), rank))
        measured[f"C{ratio}"] = {"err/bound": round(worst, 4)}
    return bench.evidence(
        f"chunks of {', '.join(map(str, _CHUNKS))} answer as they must", "err/bound at most 1", measured, 1.0
    )
