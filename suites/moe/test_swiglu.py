"""The clamp's side and order, by crafted gates and ups: one pair a token, alike in every channel.

Random data hides all of this: at limit 10 the order changes less than BF16 shows, and gates below -10 hardly matter.
Gates of -12 to -24 show a clamp from below (silu(-10) is six times silu(-12) and more); limit 1 shows the order.
"""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.provenance.checkpoint import ONE_SCALE, Checkpoint, Column, Constant, Diagonal
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references.finalize import bf16
from references.flips import mirrored
from references.moe_staged import staged_input
from references.nvfp4 import GlobalScales
from suites.moe import scales
from suites.moe.bench import Bench
from suites.moe.exact import Exact

_LIMITS = (10.0, 1.0)
_UP_COLUMN = 32  # a scale group away from the gate's, so that neither is quantised by the other's scale
_PAIRS = [
    *((-gate, up) for gate in (0.5, 1.0, 4.0, 8.0, 12.0, 14.0, 16.0, 20.0, 24.0) for up in (1.0, -3.0)),
    *((gate, 1.0) for gate in (0.5, 1.0, 2.0, 4.0, 9.0, 11.0, 16.0, 32.0)),
    *((4.0, up) for up in (-48.0, -16.0, -11.0, -9.0, -0.5, 0.5, 9.0, 11.0, 16.0, 48.0)),
]


@claim("moe.swiglu.clamp")
def clamp(stack: Stack, context: Context) -> Evidence:
    bench, exact = Bench(context), Exact(Bench(context), "moe.swiglu.clamp")
    one = Constant(ONE_SCALE)
    checkpoint = Checkpoint(Column(), one, Column(column=_UP_COLUMN), one, Diagonal(), one)
    gate, up = torch.tensor(_PAIRS, dtype=torch.float64, device=bench.device).unbind(1)
    x = torch.zeros(len(_PAIRS), bench.hidden, dtype=torch.bfloat16, device=bench.device)
    x[:, 0], x[:, _UP_COLUMN] = gate.bfloat16(), up.bfloat16()
    for limit in _LIMITS:
        given = GlobalScales(scales.above(48.0), scales.above(limit**2))
        seen = staged_input(x.double(), bench.can.scheme, given)
        gate, up = seen[:, 0], seen[:, _UP_COLUMN]
        for rank in context.ranks:
            own = bench.own(rank)
            zero = torch.zeros(len(_PAIRS), 32, dtype=torch.float64, device=bench.device)
            right = mirrored(
                zero + gate[:, None], zero + up[:, None], zero, zero, bench.can.scheme, limit, scales=given
            )
            want, slack = torch.zeros(2, len(_PAIRS), bench.hidden, dtype=torch.float64, device=bench.device)
            value = bf16(right.value[:, :1])
            low, high = bf16(right.value[:, :1] - right.radius[:, :1]), bf16(right.value[:, :1] + right.radius[:, :1])
            want[:, own.start : own.stop] = value
            slack[:, own.start : own.stop] = torch.maximum(high - value, value - low)
            with bench.layer(rank, checkpoint, limit, global_scales=given) as layer:
                for expert in range(bench.experts):
                    got = bench.probe(layer, x, expert)
                    exact.compare(rank, expert, got, want, _Where(limit), slack=slack)
    return exact.evidence(
        f"gate clamped from above only, up on both sides, before SiLU, at limits {' and '.join(map(str, _LIMITS))}",
        notes=[f"{len(_PAIRS)} pairs of gate and up; slack only where the exponential may flip a code"],
    )


class _Where:
    def __init__(self, limit: float):
        self.limit = limit

    def __call__(self, token: int, column: int) -> str:
        gate, up = _PAIRS[token]
        return f"gate {gate:g}, up {up:g}, limit {self.limit:g}, channel {column}"
