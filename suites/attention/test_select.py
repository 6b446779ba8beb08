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

_K = 64  # where the stack takes any


def _grid(shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    """Integers in -2..2, every row with a 2: FP8 holds them exactly, scaled by amax / 448 or by a power of two."""
    x = torch.randint(-2, 3, shape, generator=rng).float()
    x[..., 0] = 2
    return x.bfloat16()


@claim("attention.select.set")
def chosen(stack: Stack, context: Context) -> Evidence:
    """The k highest of the complete entries of one's own request; fewer where there are fewer; ties as declared."""
    bench, g = Bench(context, "select"), context.geometry
    can, rng = bench.can, bench.rng(40)
    k = (can.select_k or (_K,))[0]
    entries, heads, width = k + k // 3 + 5, g.index_heads, g.index_head_dim
    near = torch.tensor(
        [0, 2, 3, 4, 7, 4 * k - 2, 4 * k - 1, 4 * k + 3, 4 * entries - 5, 4 * entries - 2, 4 * entries - 1]
    )
    positions, requests = near.repeat(2), torch.arange(2, dtype=torch.int32).repeat_interleave(len(near))
    tokens = len(positions)
    q, keys = _grid((tokens, heads, width), rng), _grid((2, entries, width), rng)
    keys[:, entries // 2 :] = keys[:, : entries - entries // 2]  # equal scores, far apart
    weights = torch.randint(-4, 5, (tokens, heads), generator=rng).float() / 4
    q, weights, keys, positions, requests = (p.to(can.device) for p in (q, weights, keys, positions, requests))
    got = bench.kernel.select(SelectCall(q, weights, keys, positions, requests, k))
    scored = attention_index.scores(q, weights, keys[requests.long()], positions)
    lowest = attention_index.lowest(scored, k)
    ties = 0
    for token in range(tokens):
        ids, score = got[token][got[token] >= 0].long(), scored[token]
        visible = (int(positions[token]) + 1) // 4
        due = lowest[token][lowest[token] >= 0]
        where = f"request {int(requests[token])}, position {int(positions[token])}, {visible} entries"
        bench.compared += k
        rest = score.clone()
        rest[ids.clamp(max=entries - 1)] = -torch.inf
        boundary = float(score[ids.clamp(max=entries - 1)].min()) if len(ids) else 0.0
        ties += int(len(due) == k and (score == score[due].min()).sum() > (score[due] == score[due].min()).sum())
        if len(set(ids.tolist())) != len(ids) or len(ids) != len(due):
            bench.find(
                where, f"{len(due)} different entries", f"{len(set(ids.tolist()))} of {len(ids)}", "k, or all there are"
            )
        elif len(ids) and (int(ids.max()) >= visible or boundary < float(rest.max())):
            bench.find(
                where, "the highest scores", f"{boundary:g} chosen, {float(rest.max()):g} not", "not the k highest"
            )
        elif can.ties == "lowest" and set(ids.tolist()) != set(due.tolist()):
            bench.find(
                where,
                "of equal scores the lowest numbers",
                str(sorted(set(ids.tolist()) - set(due.tolist()))[:6]),
                "the tie rule that is declared",
            )
    return bench.evidence(
        f"the {k} highest of {tokens} queries, {ties} with ties at the edge",
        f"k = {k}, ties: {can.ties}",
        {"queries with ties": ties},
    )
