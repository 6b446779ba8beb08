"""The C4 indexer's choice, on grids where every score is exact in FP32 whatever the order of its sum."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.attention_protocol import SelectCall
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import attention_index
from suites.attention.bench import Bench

_K = 512  # where the stack takes any
#: Where scales are amax / 448 weights are rounded twice, scores as often as there are heads: of the terms' sizes.
_SLACK = 2.0**-20


def _grid(shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    """0 and powers of two from 1/4 to 2 with either sign, every row with a 2: FP8 holds them exactly, scaled by
    amax / 448 or by a power of two. Products of 128 are whole sixteenths, of more bits than BF16 has."""
    x = torch.exp2(torch.randint(-2, 2, shape, generator=rng).float())
    x *= torch.randint(-1, 2, shape, generator=rng)
    x[..., 0] = 2
    return x.bfloat16()


def _weights(tokens: int, heads: int, rng: torch.Generator) -> torch.Tensor:
    """(tokens, heads) float32: whole 512ths up to 1, more bits than BF16 has."""
    return torch.randint(-512, 513, (tokens, heads), generator=rng).float() / 512


@claim("attention.select.set")
def chosen(stack: Stack, context: Context) -> Evidence:
    """The k highest of the complete entries of one's own request; fewer where there are fewer; ties as declared."""
    bench, g = Bench(context, "select"), context.geometry
    can, rng = bench.can, bench.rng(40)
    k = (can.select_k or (_K,))[0]
    entries = k + k // 3 + 5
    early = torch.tensor([[0, 2, 3, 4, 7], [1, 3, 11, 15, 2 * k]])
    edges = torch.tensor([[4 * k - 2, 4 * k + 3, 4 * k + 9], [4 * k - 1, 4 * k, 4 * k + 99]])
    late = 4 * entries - 1 - torch.tensor([range(36, -1, -4), range(37, 0, -4)])
    near = torch.cat((early, edges, late), dim=1)
    keys = _grid((3, entries, g.index_head_dim), rng)
    keys[:, entries // 2 :] = keys[:, : entries - entries // 2]  # equal scores, far apart
    ties = 0
    # Prefill: requests 0 and 2 with many tokens each, 1 with none. Decode: one token each.
    for places in (near, near[:, -1:]):
        positions, requests = places.flatten(), torch.tensor([0, 2], dtype=torch.int32).repeat_interleave(len(places.T))
        q = _grid((len(positions), g.index_heads, g.index_head_dim), rng)
        weights = _weights(len(positions), g.index_heads, rng)
        q, weights, positions, requests = (p.to(can.device) for p in (q, weights, positions, requests))
        call = SelectCall(q, weights, keys.to(can.device), positions, requests, k)
        ties += _judge(bench, call)
        _unranked(bench, call)
    return bench.evidence(
        f"the {k} highest of {near.numel() + 2} queries, {ties} with ties at the edge",
        f"k = {k}, ties: {can.ties}",
        {"queries with ties": ties},
    )


def _unranked(bench: Bench, call: SelectCall) -> None:
    """A query whose scores are all NaN gets numbers of complete entries of its own, or none: what reads them later
    reads memory that is there. Source: vLLM #49896."""
    weights = call.weights.clone()
    weights[-1] = torch.nan
    got, visible = bench.kernel.select(call._replace(weights=weights))[-1], (int(call.positions[-1]) + 1) // 4
    bench.compared += len(got)
    if len(garbage := got[(got < -1) | (got >= visible)]):
        where = f"position {int(call.positions[-1])}, weights NaN"
        bench.find(where, f"-1, or below {visible}", f"{int(garbage[0])}", f"{len(garbage)} of {len(got)} are no entry")


def _judge(bench: Bench, call: SelectCall) -> int:
    """How many queries have equal scores at the edge of their choice."""
    got, k, entries = bench.kernel.select(call), call.k, call.keys.shape[1]
    own = call.keys[call.requests.long()]
    scored = attention_index.scores(call.q, call.weights, own, call.positions)
    sizes = attention_index.scores(call.q, call.weights.abs(), own, call.positions)
    lowest = attention_index.lowest(scored, k)
    ties = 0
    for token, (position, request) in enumerate(zip(call.positions.tolist(), call.requests.tolist(), strict=True)):
        ids, score = got[token][got[token] >= 0].long(), scored[token]
        visible = (position + 1) // 4
        due = lowest[token][lowest[token] >= 0]
        where = f"request {request}, position {position}, {visible} entries"
        bench.compared += k
        rest = score.clone()
        rest[ids.clamp(max=entries - 1)] = -torch.inf
        boundary = float(score[ids.clamp(max=entries - 1)].min()) if len(ids) else 0.0
        slack = _SLACK * max(float(sizes[token].max()), 0.0)
        ties += int(len(due) == k and (score == score[due].min()).sum() > (score[due] == score[due].min()).sum())
        if len(set(ids.tolist())) != len(ids) or len(ids) != len(due):
            bench.find(
                where, f"{len(due)} different entries", f"{len(set(ids.tolist()))} of {len(ids)}", "k, or all there are"
            )
        elif len(ids) and (int(ids.max()) >= visible or boundary < float(rest.max()) - slack):
            bench.find(
                where, "the highest scores", f"{boundary:g} chosen, {float(rest.max()):g} not", "not the k highest"
            )
        elif bench.can.ties == "lowest" and set(ids.tolist()) != set(due.tolist()):
            bench.find(
                where,
                "of equal scores the lowest numbers",
                str(sorted(set(ids.tolist()) - set(due.tolist()))[:6]),
                "the tie rule that is declared",
            )
    return ties
