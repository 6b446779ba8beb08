"""Layouts by their index formulas: scale tiles of 128 x 4, groups, experts; gate/up rows interleaved; K-major
codes."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import interleave as weaving
from references import scale_layout
from suites.quant.bench import Bench, poisoned
from suites.quant.exact import Exact

#: Rows and blocks: no whole tile, one, more than one in each direction.
_SHAPES = [
    (1, 1),
    (4, 4),
    (5, 3),
    (31, 4),
    (32, 5),
    (128, 4),
    (129, 5),
    (130, 7),
    (200, 12),
    (256, 8),
    (384, 20),
    (1030, 6),
    (5, 261),
]
_GROUPS = [([5, 0, 130], 5), ([1, 128, 127, 3], 8), ([0, 0, 7], 4), ([128, 256], 4), ([33, 257], 12)]
_EXPERTS = [(3, 192, 8), (2, 130, 7), (1, 16, 1), (4, 5, 3), (2, 256, 8)]


def _payloads(rows: int, columns: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """What tells rows apart, what tells blocks apart, and what tells most of both apart; none is zero, as padding
    is."""
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    return {
        "row numbers": (row % 255 + 1 + 0 * column).byte(),
        "block numbers": (column % 255 + 1 + 0 * row).byte(),
        "row * 31 + block": ((row * 31 + column) % 251 + 1).byte(),
        "random bytes": torch.randint(1, 255, (rows, columns), generator=generator).byte(),
    }


def _start(stack: Stack, context: Context, *needs: str) -> tuple[Bench, Exact]:
    bench = Bench(stack, context, *needs)
    return bench, Exact(bench.can.runs, bench.seed)


@claim("quant.layout.swizzle")
def swizzle(stack: Stack, context: Context) -> Evidence:
    bench, exact = _start(stack, context, "swizzle")
    for rows, columns in _SHAPES:
        for name, scales in _payloads(rows, columns, bench.generator(rows)).items():
            with poisoned():
                flat = bench.quantizer.swizzle(bench.to(scales)).flatten()
            exact.same(f"({rows}, {columns}), {name}: byte", flat, scale_layout.swizzled(scales))
    return exact.evidence("every scale at its offset, whole tiles, zeros in between")


@claim("quant.layout.unswizzle")
def unswizzle(stack: Stack, context: Context) -> Evidence:
    """From buffers whose padding is garbage."""
    bench, exact = _start(stack, context, "unswizzle")
    for rows, columns in _SHAPES:
        for name, scales in _payloads(rows, columns, bench.generator(rows)).items():
            flat = torch.full((scale_layout.size(rows, columns),), 0x7F, dtype=torch.uint8)
            held = scale_layout.swizzled(scales)
            flat[held != 0] = held[held != 0]
            got = bench.quantizer.unswizzle(bench.to(flat), rows, columns)
            exact.same(f"({rows}, {columns}), {name}", got, scales)
    return exact.evidence("the inverse of the formula, padding left out")


@claim("quant.layout.groups")
def groups(stack: Stack, context: Context) -> Evidence:
    """Groups of 0, 1, 128k and other numbers of rows. A flat swizzle over all rows is the same only for multiples of
    128."""
    bench, exact = _start(stack, context, "groups")
    for sizes, columns in _GROUPS:
        scales = [_payloads(m, columns, bench.generator(m))["random bytes"] for m in sizes]
        want, starts = scale_layout.grouped(scales)
        with poisoned():
            flat, got = bench.quantizer.groups([bench.to(one) for one in scales])
        what = f"groups {sizes} of {columns} blocks"
        exact.true(f"starts of {what}", list(got) == starts, str(starts), str(list(got)))
        exact.same(f"{what}: byte", flat.flatten(), want)
    return exact.evidence("each group padded to whole tiles on its own")


@claim("quant.layout.experts")
def experts(stack: Stack, context: Context) -> Evidence:
    """N of no multiple of 128: where it is one, a flat swizzle over all experts looks right."""
    bench, exact = _start(stack, context, "experts")
    for shape in _EXPERTS:
        scales = torch.randint(1, 255, shape, generator=bench.generator(shape[1])).byte()
        with poisoned():
            got = bench.quantizer.experts(bench.to(scales)).flatten(1)
        exact.same(f"{shape}: byte", got, scale_layout.by_expert(scales))
    return exact.evidence("each expert swizzled on its own")


def _numbered(experts_: int, half: int, width: int) -> torch.Tensor:
    """Row numbers of [gate; up] in every column, another base for each expert."""
    row = torch.arange(2 * half) + 7 * torch.arange(experts_)[:, None]
    return (row % 256).byte()[:, :, None].repeat(1, 1, width)


_HALVES = (8, 16, 24, 32, 48, 96)


@claim("quant.layout.interleave")
def interleave(stack: Stack, context: Context) -> Evidence:
    """Codes: granularity counts rows of the output, not bytes. (Interleaving and deinterleaving by half of it undo
    each other: no test through both can see that.)"""
    return _interleave(stack, context, scales=False)


@claim("quant.layout.interleave_scales")
def interleave_scales(stack: Stack, context: Context) -> Evidence:
    """Scales go with their rows."""
    return _interleave(stack, context, scales=True)


def _interleave(stack: Stack, context: Context, scales: bool) -> Evidence:
    bench, exact = _start(stack, context, "interleave")
    for g in bench.can.granularities:
        for half in (h for h in _HALVES if h % g == 0):
            for count in (1, 3):
                numbered, plain = _numbered(count, half, 3), torch.zeros(count, 2 * half, 5, dtype=torch.uint8)
                given = (plain, numbered) if scales else (numbered, plain)
                got = bench.quantizer.interleave(bench.to(given[0]), bench.to(given[1]), g)[scales]
                what = f"granularity {g}, {count} x {half} rows of gate: row in column"
                exact.same(what, got, numbered[:, weaving.order(half, g)], show="d")
    return exact.evidence("rows of gate and up take turns by the granularity asked for")


@claim("quant.layout.deinterleave")
def deinterleave(stack: Stack, context: Context) -> Evidence:
    """The inverse, on the columns of a result."""
    bench, exact = _start(stack, context, "deinterleave")
    for g in bench.can.granularities:
        for half in (h for h in _HALVES if h % g == 0):
            numbered = torch.arange(2 * half).float().repeat(3, 1).bfloat16()
            woven = numbered[:, weaving.order(half, g)]
            got = bench.quantizer.deinterleave(bench.to(woven), g)
            exact.same(f"granularity {g}, {half} columns of gate: column", got.cpu().float(), numbered.float())
    return exact.evidence("[gate, up] again")


@claim("quant.layout.k_major")
def k_major(stack: Stack, context: Context) -> Evidence:
    """Seen as (E, K / 2, N), and yet K / 2 is the contiguous axis: a `.contiguous()` too many undoes it."""
    bench, exact = _start(stack, context, "k_major")
    for shape in ((2, 24, 8), (1, 16, 40), (3, 8, 8)):
        codes_ = torch.randint(0, 256, shape, generator=bench.generator()).byte()
        got = bench.quantizer.k_major(bench.to(codes_))
        exact.same(f"{shape}: byte", got, codes_.transpose(1, 2))
        exact.true(f"stride over K / 2 of {shape}", got.stride(1) == 1, "1", str(got.stride(1)))
    return exact.evidence("K is contiguous")
