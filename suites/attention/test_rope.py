"""The rotary tables that a stack makes, and its queries: normalised head by head, rotated, rounded once."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import attention_bound, attention_compress, attention_rope
from suites.attention.bench import Bench, D

#: Past YaRN's original 65,536.
_POSITIONS = 70_000
_EPS = 1e-6
_TOKENS = 150


@claim("attention.rope.table")
def table(stack: Stack, context: Context) -> Evidence:
    """cos | sin in FP32: theta 10000 with compression 0, theta 160000 and YaRN with 4 and 128."""
    bench, config, measured = Bench(context, "table"), context.geometry.config, {}
    for ratio in (0, 4, 128):
        got = bench.kernel.table(context.geometry, ratio, _POSITIONS)
        angle = attention_rope.angles(attention_rope.of_layer(config, ratio), _POSITIONS).to(got.device)
        due = torch.cat((angle.cos(), angle.sin()), dim=1)
        bound = attention_rope.ANGLE * angle.repeat(1, 2) + attention_rope.TABLE
        if got.dtype != torch.float32 or got.shape != due.shape:
            words = f"{str(got.dtype).removeprefix('torch.')} {tuple(got.shape)}"
            bench.find(f"C{ratio}", f"float32 {tuple(due.shape)}", words, "angles of thousands need FP32")
        if got.shape == due.shape:
            measured[f"C{ratio}"] = {
                "err/bound": round(bench.within(f"C{ratio}, (position, entry)", got, due, bound), 4)
            }
    return bench.evidence(f"tables of {_POSITIONS} positions are right", "err/bound at most 1", measured, 1.0)


@claim("attention.queries.right")
def queries(stack: Stack, context: Context) -> Evidence:
    """RMS norm without weight and rotation, rounded once; a virtual head's zeros stay zeros, pad heads are finite."""
    bench, measured = Bench(context, "queries"), {}
    table_ = attention_rope.table(attention_rope.of_layer(context.geometry.config, 4), _POSITIONS).float()
    for rank in context.ranks:
        real = bench.real(rank)
        rng = bench.rng(20 + rank)
        power = torch.randint(-6, 7, (_TOKENS, bench.heads, 1), generator=rng)
        q = torch.ldexp(torch.randn(_TOKENS, bench.heads, D, generator=rng), power).bfloat16()
        q[:, real:] = 0
        positions = torch.randint(0, _POSITIONS, (_TOKENS,), generator=rng)
        q, positions, at = (part.to(bench.can.device) for part in (q, positions, table_))
        got = bench.kernel.queries(q, positions, at, _EPS)
        bench.compared += got.numel()
        if got.shape != (_TOKENS, bench.padded, D):
            bench.find(
                f"rank {rank}",
                f"({_TOKENS}, {bench.padded}, {D})",
                str(tuple(got.shape)),
                "padded to the kernel's heads",
                rank,
            )
            continue
        normalised = attention_compress.normalised(q, None, _EPS)
        due, size = (
            attention_rope.rotated(normalised, positions, at),
            normalised.abs() + attention_rope.turn_size(normalised),
        )
        # Sums of 512 squares in FP32, a root, a product, a rotation: 16 roundings are generous.
        bound = attention_bound.rounded_once(due, size, 2.0**-20)
        measured[f"rank {rank}, err/bound"] = round(bench.within("query", got[:, : bench.heads], due, bound, rank), 4)
        if not got.isfinite().all():
            bench.find(f"rank {rank}, pad heads", "finite", "NaN or Inf", "the kernel computes with them", rank)
    return bench.evidence("queries are normalised and rotated", "BF16 next to the exact value", measured, 1.0)
