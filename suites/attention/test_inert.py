"""Interventions: what is nobody's business is changed, and no bit of a real head may move; what is, and it must."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence
from conformance.stacks.attention_protocol import AttendCall, Phase
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.attention import random_scenes
from suites.attention.bench import Bench, bits


def _noise(bench: Bench, shape: torch.Size | tuple[int, ...], number: int) -> torch.Tensor:
    return (20 * torch.randn(shape, generator=bench.rng(number))).to(bench.can.device)


@claim("attention.pads.inert")
def pads(stack: Stack, context: Context) -> Evidence:
    """Queries and sinks of virtual heads and of the kernel's own pad heads."""
    bench, tried = Bench(context, "attend"), 0
    for phase, rank, ratio in _calls(bench):
        call = bench.call(random_scenes.made(bench, ratio, phase), rank, phase)
        real = bench.real(rank)
        clean = bench.attend(call)[:, :real]
        for what, changed in _spoilt_pads(bench, call, real):
            bench.compare(
                f"C{ratio}, {phase}, {what}", bench.attend(changed)[:, :real], clean, "pad heads reach real ones", rank
            )
            tried += 1
    if not tried:
        raise NotSupported("the kernel pads no head, and no head is virtual: there is nothing to change")
    return bench.evidence(f"{tried} changes of virtual and pad heads move no bit of a real one", "bit for bit")


def _calls(bench: Bench) -> list[tuple[Phase, int, int]]:
    """Every phase on every rank that has a real head, compression by turns."""
    ranks = [rank for rank in bench.context.ranks if bench.real(rank)]
    return [
        (phase, rank, random_scenes.RATIOS[(n + m) % 3])
        for n, phase in enumerate(bench.can.phases)
        for m, rank in enumerate(ranks)
    ]


def _spoilt_pads(bench: Bench, call: AttendCall, real: int) -> list[tuple[str, AttendCall]]:
    changes = []
    for name, start in (("virtual and pad heads", real), ("pad heads", bench.heads)):
        if start >= call.q.shape[1]:
            continue
        garbage, sinks = call.q.clone(), call.sinks.clone()
        garbage[:, start:] = _noise(bench, garbage[:, start:].shape, 3).bfloat16()
        changes.append((f"queries of {name}", call._replace(q=garbage)))
        if bench.can.sinks:
            sinks[start:] = _noise(bench, sinks[start:].shape, 4)
            changes.append((f"queries and sinks of {name}", call._replace(q=garbage, sinks=sinks)))
        if bench.can.nan_pads and start == bench.heads:
            spoilt = call.q.clone()
            spoilt[:, start:] = torch.nan
            changes.append((f"NaN in queries of {name}", call._replace(q=spoilt)))
    return changes


@claim("attention.heads.own")
def own(stack: Stack, context: Context) -> Evidence:
    """Each real head answers its own query with its own sink: changing them moves that head, and no other."""
    bench = Bench(context, "attend")
    for phase, rank, ratio in _calls(bench):
        call = bench.call(random_scenes.made(bench, ratio, phase), rank, phase)
        real = bench.real(rank)
        clean = bench.attend(call)[:, :real]
        for head in sorted({0, real // 2, real - 1}):
            others = torch.tensor([h for h in range(real) if h != head], dtype=torch.long, device=clean.device)
            changes = [("query", call._replace(q=_with(call.q, head, -call.q[:, head])))]
            if bench.can.sinks:
                sinks = _with(call.sinks[None], head, call.sinks[None, head] + 3)[0]
                changes.append(("sink", call._replace(sinks=sinks)))
            for what, changed in changes:
                out = bench.attend(changed)[:, :real]
                where = f"C{ratio}, {phase}, {what} of head {head} changed"
                bench.compare(where, out[:, others], clean[:, others], "another head moves with it", rank, "other head")
                unmoved = (bits(out[-1, head]) == bits(clean[-1, head])).all()
                bench.compared += 1
                if unmoved:
                    bench.find(
                        f"rank {rank}, {where}", "another output", "the same bits", f"its {what} is not read", rank
                    )
    return bench.evidence("each head answers its own query with its own sink", "moves that head alone")


def _with(x: torch.Tensor, head: int, value: torch.Tensor) -> torch.Tensor:
    changed = x.clone()
    changed[:, head] = value
    return changed


@claim("attention.stale.inert")
def stale(stack: Stack, context: Context) -> Evidence:
    """Stale tokens, zeros and NaN past the valid KV, in unused pages and behind -1; the same tokens in other pages."""
    bench, tried = Bench(context, "attend"), []
    fills = ("zero", "nan") if bench.can.nan_stale else ("zero",)
    for phase in bench.can.phases:
        for ratio in random_scenes.RATIOS:
            rank = context.ranks[0]
            real, clean = bench.real(rank), None
            clean = bench.attend(bench.call(random_scenes.made(bench, ratio, phase), rank, phase))[:, :real]
            for fill in fills:
                one = random_scenes.made(bench, ratio, phase, fill)  # type: ignore[arg-type]
                out = bench.attend(bench.call(one, rank, phase))[:, :real]
                bench.compare(f"C{ratio}, {phase}, {fill} for stale bytes", out, clean, "unseen bytes are read", rank)
            one = random_scenes.made(bench, ratio, phase, deal=7)
            out = bench.attend(bench.call(one, rank, phase))[:, :real]
            bench.compare(f"C{ratio}, {phase}, other pages", out, clean, "the answer depends on where pages lie", rank)
            tried = [*fills, "other pages"]
            _moves(bench, ratio, phase, rank, clean)
    return bench.evidence(f"unseen bytes move no bit ({', '.join(tried)}); seen ones do", "bit for bit")


def _moves(bench: Bench, ratio: int, phase: Phase, rank: int, clean: torch.Tensor) -> None:
    """The last token that each query sees is another: its answer must be, too."""
    for part, name in enumerate(("window", "compressed")[: 2 if ratio else 1]):
        one = random_scenes.made(bench, ratio, phase)
        pages, slots = one.slots()[part]
        valid = (slots >= 0).sum(1)
        if not int(valid[-1]):
            continue
        slot = int(slots[-1, int(valid[-1]) - 1])
        page, row = divmod(slot, pages.tokens)
        width = 576 if one.fp8 else 1024
        pages.data[page, row * width + 1 : (row + 1) * width : 2] ^= 0x80  # signs of every other code, or of all BF16
        out = bench.attend(bench.call(one, rank, phase))[:, : bench.real(rank)]
        bench.compared += 1
        if torch.equal(bits(out[-1]), bits(clean[-1])):
            bench.find(
                f"rank {rank}, C{ratio}, {phase}, last token, {name}",
                "another output",
                "the same bits",
                "the newest token that it sees is not read",
                rank,
            )


@claim("attention.memory.canaries")
def canaries(stack: Stack, context: Context) -> Evidence:
    """Outputs alone are written: not what lies next to them, and neither queries nor sinks, slots or caches; of a call
    without tokens nothing."""
    bench = Bench(context, "attend")
    for phase in bench.can.phases:
        nobody = bench.of_tokens(bench.call(random_scenes.made(bench, 4, phase), context.ranks[0], phase), slice(0))
        bench.attend(nobody)
        for ratio in random_scenes.RATIOS:
            for rank in context.ranks:
                call = bench.call(random_scenes.made(bench, ratio, phase), rank, phase)
                before = {name: part.clone() for name, part in _inputs(call).items()}
                out = bench.attend(call)
                for name, part in _inputs(call).items():
                    changed = int((part.contiguous().view(torch.uint8) != before[name].view(torch.uint8)).sum())
                    bench.compared += 1
                    if changed:
                        bench.find(
                            f"rank {rank}, C{ratio}, {phase}, {name}",
                            "as it was",
                            f"{changed} bytes changed",
                            "an input is written",
                            rank,
                        )
                unwritten = int(out[:, : bench.heads].isnan().sum())
                if unwritten:
                    bench.find(
                        f"rank {rank}, C{ratio}, {phase}, out",
                        "every element",
                        f"{unwritten} NaN",
                        "never written, or a NaN",
                        rank,
                    )
    spoilt = bench.spoilt()
    for name, count in spoilt.items():
        if count:
            bench.find(f"next to {name}", "canaries", f"{count} bytes changed", "the kernel writes beyond its output")
    return bench.evidence("outputs alone are written", "canaries whole, inputs as they were", spoilt)


def _inputs(call: AttendCall) -> dict[str, torch.Tensor]:
    found = {"q": call.q, "sinks": call.sinks}
    for name, part in (("window", call.window), ("compressed", call.compressed)):
        if part is not None:
            found |= {f"{name} pages": part.pages.data, f"{name} slots": part.slots, f"{name} lengths": part.lengths}
    return found
