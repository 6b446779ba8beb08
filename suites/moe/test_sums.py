"""Sums that are exact in FP32: over many channels at once (cross terms), and over a token's slots."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.provenance.checkpoint import ONE_SCALE, Checkpoint, Column, Constant, Diagonal, seeded
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import finalize
from references.finalize import bf16
from references.moe import decoded
from references.moe_staged import moe_staged, staged_slots
from suites.moe import due, scales
from suites.moe.bench import Bench
from suites.moe.exact import Exact

_TOKENS = 16
_LIMIT = 2.0**15


@claim("moe.exact.dense")
def dense(stack: Stack, context: Context) -> Evidence:
    """Every channel and every input at once, all small dyadic numbers: each partial sum is under 2^24 units, so that
    FP32 holds it exactly in any order, and the roundings that follow have one right result."""
    bench, exact = Bench(context), Exact(Bench(context), "moe.exact.dense")
    random, one = seeded(context.target.seed), Constant(ONE_SCALE)
    checkpoint = Checkpoint(Column(), Constant(ONE_SCALE + 5), random.w3, one, random.w2, one)
    x, given = _signs(bench, context.target.seed), scales.probe(scales.above(2.0**15))
    for rank in context.ranks:
        own = bench.own(rank)
        experts = due.experts(checkpoint, context.geometry, own, bench.device)
        with bench.layer(rank, checkpoint, _LIMIT, global_scales=given) as layer:
            for expert in range(bench.experts):
                chosen = x[_settled(x, expert, checkpoint, bench, rank)]
                ids = torch.full((len(chosen), 1), expert, device=bench.device)
                scheme = bench.can.scheme
                want = moe_staged(chosen, ids, ids * 0.0 + 1, experts, len(own), scheme, _LIMIT, scales=given)
                got = bench.probe(layer, chosen, expert)
                exact.compare(rank, expert, got, want, lambda token, column: f"token {token}, output {column}")
    return exact.evidence("sums over all channels are exact", context.target.seed, [f"{_TOKENS} dense tokens"])


def _signs(bench: Bench, seed: int) -> torch.Tensor:
    """Tokens of -1, 0 and 1, the first input always 1 (it opens the gates): (tokens, H) bfloat16."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(-1, 2, (_TOKENS, bench.hidden), generator=rng).bfloat16()
    x[:, 0] = 1
    return x.to(bench.device)


def _settled(x: torch.Tensor, expert: int, checkpoint: Checkpoint, bench: Bench, rank: int) -> torch.Tensor:
    """Tokens whose activations have one right quantisation: no block's amax is 1.75 * 2^n, where amax / 448 is a power
    of two and a kernel's approximate reciprocal may choose either scale."""
    if bench.can.scheme != "mxfp8":
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    own = bench.own(rank)
    w = decoded(due.experts(checkpoint, bench.context.geometry, own, bench.device)(expert, 0, len(own)), torch.float64)
    amax = bf16(x.double() @ w.w3.T).unflatten(1, (-1, 32)).abs().amax(-1)
    return (torch.frexp(amax).mantissa != 0.875).all(1)


@claim("moe.exact.sum")
def slots(stack: Stack, context: Context) -> Evidence:
    """1 + 2^-8 + 2^-8: in FP32 that is 1 + 2^-7, which BF16 holds; a BF16 sum in slot order loses both small terms."""
    bench, exact = Bench(context), Exact(Bench(context), "moe.exact.sum")
    one = Constant(ONE_SCALE)
    checkpoint = Checkpoint(Column(), Constant(ONE_SCALE + 5), Column(), one, Diagonal(), one)
    limit = context.geometry.swiglu_limit
    x = bench.one_hot([0] * bench.slots)
    ids = torch.arange(bench.slots, dtype=torch.int32, device=bench.device).repeat(bench.slots, 1)
    weights = torch.full(ids.shape, 2.0**-8, device=bench.device).fill_diagonal_(1.0)
    given = scales.probe(scales.reaching(due.lone_activation(32.0, 1.0, "bf16", limit)))
    steps = bench.can.scheme == "bf16_steps"
    for rank in context.ranks:
        own = bench.own(rank)
        experts = due.experts(checkpoint, context.geometry, own, bench.device)
        stored = staged_slots(x, ids, experts, len(own), bench.can.scheme, limit, scales=given)
        want, slack = (finalize.stepped if steps else finalize.unfused)(stored, weights), None
        if not steps and bench.can.slot_sum == "bfloat16":
            want, slack = finalize.fused(stored, weights)
        with bench.layer(rank, checkpoint, limit, global_scales=given) as layer:
            got = bench.run(layer, x, ids, weights)
        exact.compare(
            rank, None, got, want, lambda token, column: f"slot {token} of weight 1, output {column}", slack=slack
        )
    summed = "bfloat16" if steps and bench.slots <= finalize.FEW else bench.can.slot_sum
    return exact.evidence(f"{bench.slots} slots are summed in {summed}")
