"""How far a right attention kernel may be from the FP64 result: the variance of its own roundings (see `bound.py`).

Roundings, in order: a score is a sum of 512 products in FP32, and its exponential is approximate; softmax's numerators
are BF16 where they meet V (the denominator takes them rounded or not: the larger of both); the products are summed in
FP32; the output is BF16. Keys and values are exact in BF16. With q and v given all else follows.
"""

from __future__ import annotations

from typing import Literal

import torch

from references import attention_rope
from references.attention import Part, Seen, parts
from references.attention_output import grouped
from references.bound import FP32, Bounded, ulp

#: exp2 on GPUs: 2 units of the last place of FP32. Source: CUDA Programming Guide, `ex2.approx.ftz.f32`.
EXP = 2.0**-22
BF16 = 2.0**-8
#: What FP32 may lose below its least normal number, 2^-126, of weights and outputs, a few times over.
FLUSHED = 2.0**-120
#: Unit of accumulation where E4M3 is multiplied: SM90's tensor cores keep 14 bits, FP32 takes over every 128 products.
E4M3_SUM = 2.0**-13
#: Rows of a weight that are multiplied at a time.
_ROWS = 256

Probabilities = Literal["float32", "bfloat16"]
Projection = Literal["bfloat16", "e4m3"]


def attended(
    q: torch.Tensor, seen: Seen, sinks: torch.Tensor, scale: float, keys: int, probabilities: Probabilities
) -> Bounded:
    """As `attention.attend`: value, variance and ceiling, (T, H, D) each."""
    found = [torch.zeros(q.shape, dtype=torch.float64, device=q.device) for _ in range(4)]
    for part in parts(q, seen, sinks, scale, keys):
        size = scale * (q[part.tokens].double().square() @ part.values.square().transpose(1, 2)).sqrt()
        for whole, piece in zip(found, _part(part, size, sinks, keys, probabilities), strict=True):
            whole[part.tokens] = piece
    return Bounded(*found)


def _part(part: Part, size: torch.Tensor, sinks: torch.Tensor, keys: int, probabilities: Probabilities) -> Bounded:
    p, v, o = part.weights, part.values, part.out
    largest = part.scores.masked_fill(part.scores == -torch.inf, 0.0).abs().amax(2, keepdim=True)
    noise = FP32**2 * (q_terms(v) * size.square() + 4 * largest.square()) + EXP**2
    sink = torch.exp(sinks.double() - part.lse.nan_to_num(neginf=0.0))
    of_scores = _spread(p.square() * noise, v, o) + o.square() * (sink.square() * noise.amax(2))[..., None]
    of_weights = torch.zeros_like(o)
    if probabilities == "bfloat16":
        rounded = (2 * BF16 * p).square() / 12
        of_weights = torch.maximum(rounded @ v.square(), _spread(rounded, v, o))
    of_sums = FP32**2 * keys * (p.square() @ v.square())
    flushed = FLUSHED * (1 + v.abs().amax(1)[:, None] * v.shape[1])
    variance = of_scores + of_weights + of_sums + flushed.square()
    weight = BF16 if probabilities == "bfloat16" else 2 * EXP
    worst = 2 * (weight + noise.amax(2, keepdim=True).sqrt() * keys**0.5) * (p @ v.abs() + o.abs()) + 8 * flushed
    reach = o.abs() + 8 * variance.sqrt()
    return Bounded(o, variance + ulp(reach).square() / 12, torch.zeros_like(o), worst + ulp(o.abs() + worst) / 2)


def q_terms(v: torch.Tensor) -> int:
    return v.shape[-1]


def _spread(w: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """sum_j w_j (v_j - o)^2: (t, H, D) of w (t, H, K) and v (t, K, D)."""
    total = w.sum(2, keepdim=True)
    return (w @ v.square() - 2 * o * (w @ v) + o.square() * total).clamp(min=0)


def projected(
    o: Bounded,
    positions: torch.Tensor,
    table: torch.Tensor,
    wo_a: torch.Tensor,
    wo_b: torch.Tensor,
    groups: int,
    projection: Projection,
) -> Bounded:
    """As `attention_output.project`, of outputs that themselves are uncertain (exact ones: no variance, no ceiling).

    The rotated output and z are stored as BF16, or as E4M3 in groups of 128 with a power of two each.
    """
    turned = _turned(o, positions, table)
    unit = E4M3_SUM if projection == "e4m3" else FP32
    stored = _stored(Bounded(*(grouped(part, groups) for part in turned)), projection)
    z = _times(stored, wo_a.unflatten(0, (groups, -1)), unit)
    z = _stored(Bounded(*(part.transpose(0, 1).flatten(1) for part in z)), projection)
    y = _times(z, wo_b, unit)
    reach = y.value.abs() + y.ceiling
    return y._replace(variance=y.variance + ulp(reach).square() / 12, ceiling=y.ceiling + ulp(reach) / 2)


def _turned(o: Bounded, positions: torch.Tensor, table: torch.Tensor) -> Bounded:
    """A turned channel takes cos^2 and sin^2 of its pair's variances, at most both; and is no longer a BF16 number."""
    value = attention_rope.rotated(o.value, positions, table, inverse=True)
    size = attention_rope.turn_size(o.value)
    variance, ceiling = o.variance.clone(), o.ceiling.clone()
    rope = slice(-attention_rope.ROPE, None)
    for part in (variance, ceiling):
        part[..., rope] = (
            part[..., rope].unflatten(-1, (-1, 2)).sum(-1, keepdim=True).expand(*part.shape[:-1], -1, 2).flatten(-2)
        )
    return Bounded(value, variance + (2 * FP32 * size).square(), o.allowance, ceiling + 4 * FP32 * size)


def _stored(x: Bounded, projection: Projection) -> Bounded:
    reach = x.value.abs() + torch.minimum(8 * x.variance.sqrt(), x.ceiling)
    step = ulp(reach)
    if projection == "e4m3":
        blocks = reach.unflatten(-1, (-1, min(128, reach.shape[-1])))
        scale = torch.exp2((blocks.amax(-1, keepdim=True) / 448).clamp(min=2.0**-126).log2().ceil())
        step = step + torch.maximum(ulp(blocks, bits=3), 2.0**-9 * scale).flatten(-2)
    return x._replace(variance=x.variance + step.square() / 12, ceiling=x.ceiling + step / 2)


def _times(x: Bounded, w: torch.Tensor, unit: float) -> Bounded:
    """x (..., n) times w (..., m, n) transposed, some rows of w at a time: in FP64 all of them are 100 MB."""
    found = [_times_some(x, rows, unit) for rows in w.split(_ROWS, -2)]
    return Bounded(*(torch.cat(parts, -1) for parts in zip(*found, strict=True)))


def _times_some(x: Bounded, w: torch.Tensor, unit: float) -> Bounded:
    """What bounds the error is itself summed in FP32."""
    value, terms = x.value @ w.double().transpose(-1, -2), w.shape[-1]
    size_of = w.float().abs().transpose(-1, -2)
    squares = size_of.square()
    size = (x.value.float().square() @ squares).double()
    variance = (x.variance.float() @ squares).double() + unit**2 * terms * size
    ceiling = (x.ceiling.float() @ size_of).double() + unit * terms * size.sqrt()
    return Bounded(value, variance, torch.zeros_like(value), ceiling)


def exact(value: torch.Tensor) -> Bounded:
    nothing = torch.zeros_like(value, dtype=torch.float64)
    return Bounded(value.double(), nothing, nothing, nothing)


def rounded_once(value: torch.Tensor, size: torch.Tensor, noise: float) -> torch.Tensor:
    """Most that one rounding to BF16 may be off, after FP32 work that is off by `noise` times `size`."""
    before = noise * size
    return ulp(value.abs() + before) / 2 + before
