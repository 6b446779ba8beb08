"""How many heads the kernel is given for a rank's, and what becomes of those that are no model's."""

from __future__ import annotations

import math

import torch

from conformance.context import Context
from conformance.errors import NotSupported, StackRefused
from conformance.result import Evidence
from conformance.stacks.attention_protocol import Sparse
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.attention import random_scenes
from suites.attention.bench import Bench
from suites.attention.scene import Scene


@claim("attention.heads.padded")
def padded(stack: Stack, context: Context) -> Evidence:
    """24 are 32 on SM120 and 64 on SM90: the least that the profile's kernels take. One that takes any pads nothing."""
    bench = Bench(context)
    taken = context.target.head_paddings if bench.can.heads else ()
    due = next((count for count in taken if count >= bench.heads), bench.heads)
    bench.compared += 1
    try:
        got: int | str = bench.kernel.padded(bench.heads)
    except StackRefused as refusal:
        got = f"refused: {refusal}"
    if got != due:
        bench.find(
            f"{bench.heads} heads a rank", str(due), str(got), f"the profile's kernels take {taken or 'any count'}"
        )
        return _refused(bench, got)
    return bench.evidence(
        f"{bench.heads} heads a rank are {got} in the kernel", "the profile's padding", {"heads": got}
    )


def _refused(bench: Bench, got: int | str) -> Evidence:
    head = bench.findings[0]
    summary = f"{head.where}: {head.got}, {head.expected} due; {head.meaning}"
    return Evidence(ok=False, summary=summary, expected=head.expected, measured={"heads": got}, findings=bench.findings)


@claim("attention.virtual.finite")
def finite(stack: Stack, context: Context) -> Evidence:
    """Virtual heads have zero queries and sinks of -inf. They see what all see, and in a row with no valid KV, 0/0."""
    bench, measured = Bench(context, "attend"), {}
    for phase in bench.can.phases:
        one = random_scenes.made(bench, 4, phase)
        for rank in context.ranks:
            call = bench.call(one, rank, phase)
            nobody = torch.full_like(call.sinks, -torch.inf)
            empty = call._replace(window=_emptied(call.window), sinks=nobody)
            if call.compressed is not None:
                empty = empty._replace(compressed=_emptied(call.compressed))
            for what, asked in (("all rows", call), ("no valid KV, no sink", empty)):
                out = bench.attend(asked)[:, : bench.heads]
                bad = ~out.isfinite()
                if what != "all rows" and bench.can.unsinked == "zero":
                    bad |= out != 0
                bench.compared += bad.numel()
                measured[f"rank {rank}, {phase}, {what}"] = int(bad.sum())
                if bad.any():
                    token, head = (int(i) for i in bad.nonzero()[0][:2])
                    value = float(out[token, head][bad[token, head]][0])
                    kind = "virtual" if head >= bench.real(rank) else "real"
                    bench.find(
                        f"rank {rank}, {phase}, {what}, token {token}, {kind} head {head}",
                        "a finite number" if what == "all rows" or bench.can.unsinked != "zero" else "0",
                        f"{value:g}",
                        "0 x NaN is NaN: the group's zero weights do not mend it",
                        rank,
                    )
    return bench.evidence("virtual heads are finite, in rows with no valid KV too", "finite", measured)


def _emptied(sparse: Sparse) -> Sparse:
    """The same cache, of which nobody sees anything: no slot counts, or in every other row one that is -1."""
    lengths = torch.arange(len(sparse.lengths), device=sparse.lengths.device) % 2
    return sparse._replace(slots=torch.full_like(sparse.slots, -1), lengths=lengths.to(sparse.lengths.dtype))


def _means(one: Scene) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of what each token sees: how many (T,), their mean and the mean of their sizes (T, 1, D), FP64."""
    found = []
    for token in range(len(one.positions)):  # all at once are 100 MB
        values, valid = one.seen(slice(token, token + 1))
        seen = values[valid]
        found.append((valid.sum(1), seen.mean(0)[None, None], seen.abs().mean(0)[None, None]))
    counts, mean, size = (torch.cat(parts) for parts in zip(*found, strict=True))
    return counts, mean, size


@claim("attention.sink.weight")
def sink(stack: Stack, context: Context) -> Evidence:
    """With zero queries each of n tokens weighs 1 / (n + exp(sink)): sinks of -inf and 1000 give the mean of the
    values and nothing, log n half of it where there are n."""
    bench = Bench(context, "attend")
    if not bench.can.sinks:
        raise NotSupported("the stack's attention takes no sinks")
    measured = {}
    for ratio in random_scenes.RATIOS:
        for phase in bench.can.phases:
            one = random_scenes.made(bench, ratio, phase)
            call = bench.call(one, context.ranks[0], phase)
            counts, mean, size = _means(one)
            n = int(counts.median())
            for name, value in (("-inf", -math.inf), (f"log {n}", math.log(n)), ("1000", 1000.0)):
                sinks = torch.full_like(call.sinks, value)
                out = bench.attend(call._replace(q=torch.zeros_like(call.q), sinks=sinks))[:, :1]
                due = (counts / (counts + min(math.exp(min(value, 700)), 1e300)))[:, None, None]
                # BF16 rounds the weights, all alike, and the output: 2^-8 of each at most.
                slack = due * (2.0**-8 + 2.0**-16) * (size + mean.abs()) + 2.0**-20 * size
                worst = bench.within(f"C{ratio}, {phase}, sink {name}", out, due * mean, slack)
                measured[f"C{ratio}, {phase}, sink {name}"] = round(worst, 4)
    return bench.evidence(
        "sinks take the weight that is theirs, in every mode", "exp(sink) in the denominator", measured
    )
