"""Which expert answers, and with which weight: expert e lights the output rows r with r % experts == e, and no others.

So one token shows all of its slots at once. Weights are distinct and exact in BF16; some slots hold no expert (-1).
"""

from __future__ import annotations

from math import gcd

import torch

from conformance.context import Context
from conformance.provenance.checkpoint import ONE_SCALE, Checkpoint, Column, Constant, Stripes
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references.moe_staged import moe_staged
from suites.moe import due, scales
from suites.moe.bench import Bench
from suites.moe.exact import Exact

_WEIGHTS = (1.0, 0.5, 0.75, 1.25, 0.375, 0.625, 1.5, 0.875)


@claim("moe.routing.experts")
def experts(stack: Stack, context: Context) -> Evidence:
    bench, exact = Bench(context), Exact(Bench(context), "moe.routing.experts")
    one, limit = Constant(ONE_SCALE), context.geometry.swiglu_limit
    checkpoint = Checkpoint(Column(), Constant(ONE_SCALE + 5), Column(), one, Stripes(bench.experts), one)
    ids, weights = _routes(bench)
    x = bench.one_hot([0] * len(ids))
    given = scales.probe(scales.reaching(due.lone_activation(32.0, 1.0, "bf16", limit)))
    for rank in context.ranks:
        own = bench.own(rank)
        right = due.experts(checkpoint, context.geometry, own, bench.device)
        want = moe_staged(x, ids, weights, right, len(own), bench.can.scheme, limit, scales=given)
        with bench.layer(rank, checkpoint, limit, global_scales=given) as layer:
            got = bench.run(layer, x, ids, weights)

        def where(token: int, row: int) -> str:
            slots = [f"{e}: {w:g}" for e, w in zip(ids[token].tolist(), weights[token].tolist(), strict=True)]
            return (
                f"token {token} (expert: weight {', '.join(slots)}), output {row}, lit by expert {row % bench.experts}"
            )

        exact.compare(rank, None, got, want, where)
    holes = "a quarter of the slots hold no expert (-1)"
    if not bench.can.empty_slots:
        holes = "none is empty: the kernel declares that its ids hold no -1, and so that is not shown"
    notes = [f"{len(ids)} tokens of {bench.slots} slots; {holes}"]
    return exact.evidence(f"{bench.experts} experts answer to their own ids and weights", notes=notes)


def _routes(bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
    """Every expert in every slot, then the same with holes: ids and weights (2 experts, k)."""
    first = torch.arange(bench.experts, dtype=torch.int32)[:, None]
    slot = torch.arange(bench.slots, dtype=torch.int32)
    stride = next(s for s in (37, 5, 1) if gcd(s, bench.experts) == 1)
    full = (first + slot * stride) % bench.experts
    holed = torch.where((first + slot) % 2 == 0, -1, full)
    ids = torch.cat((full, holed)) if bench.can.empty_slots else full
    weights = torch.tensor(_WEIGHTS).repeat(-(-bench.slots // len(_WEIGHTS)))[: bench.slots].repeat(len(ids), 1)
    return ids.to(bench.device), weights.to(bench.device)
