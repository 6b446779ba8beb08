"""A grouped GEMM that ends in SwiGLU, black-box: pairs of gate and up tell themselves; crafted pairs show the
clamp."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.stacks.quant_protocol import BLOCK, Quantized
from conformance.suite import claim
from references import fused_swiglu
from references.grouped_gemm import Bounded
from suites.quant.bench import TIES, plain
from suites.quant.exact import Exact
from suites.quant.judge import Judge
from suites.quant.operands import GemmBench, Groups, Matrix, of_values, random_elements, random_scales

#: Outputs: no multiple of 128, an odd number of groups of eight, less than a tile.
_HALVES = (8, 24, 136)


class Bench(GemmBench):
    def __init__(self, stack: Stack, context: Context):
        super().__init__(stack, context, context.swiglu)
        self.limit: float | None = None
        self.exact = Exact(self.can.runs, self.seed)

    def call(self, handle: object, operands: tuple[object, ...], out: torch.Tensor) -> None:
        self.kernel.run(handle, *operands[:3], self.limit, out)

    def quantised(self, a: Matrix, b: Matrix, groups: Groups, limit: float | None, global_scale: float) -> Quantized:
        """On the CPU, its scales as rows and blocks."""
        handle = self.prepared(b)
        try:
            given = self.given(a, groups)
            with self.untouched(given):
                q = self.kernel.run_quantized(handle, *given, limit, global_scale)
        finally:
            self.kernel.close(handle)
        return plain(q, groups.rows, self.width // 2, 16)

    def half(self, size: int) -> int:
        return -(-size // self.can.steps[0]) * self.can.steps[0]

    def scaled(self, values: torch.Tensor, power: int) -> Matrix:
        """Weights of E2M1 values times 2^power, all scales alike."""
        byte = 0x38 + 8 * power if self.can.weights == "nvfp4" else 127 + power
        shape = (*values.shape[:-1], values.shape[-1] // self.block)
        return of_values(values, self.can.weights, torch.full(shape, byte, dtype=torch.uint8))

    def judge(
        self, what: str, a: Matrix, b: Matrix, groups: Groups, limit: float | None, of_b: torch.Tensor | None = None
    ) -> None:
        """Every element within the bound."""
        self.limit = limit
        got = self.once(a, b, groups, None, of_b).double()
        weights = b.values.clone()
        if of_b is not None:
            own = of_b.double().view(len(weights), -1)  # one a matrix, or one a half
            weights *= own.repeat_interleave(weights.shape[1] // own.shape[1], 1)[..., None]
        for expert, rows in self.rows(groups):
            due = self.product(a.values[rows], weights[expert], limit, self.can.output)
            low, high = due.exact - due.radius, due.exact + due.radius
            self.exact.inside(f"{what}, expert {expert}", got[rows], low, high)

    def rows(self, groups: Groups) -> Iterator[tuple[int, slice]]:
        for expert, (start, size) in enumerate(zip(groups.offsets, groups.sizes, strict=True)):
            yield expert, slice(start, start + size)

    def product(self, a: torch.Tensor, w: torch.Tensor, limit: float | None, output: str) -> Bounded:
        return fused_swiglu.bounded(a, w, limit, output, self.can.accumulation, self.can.rounding == "bf16_h")

    def evidence(self, right: str) -> Evidence:
        self.exact.true("operands afterwards", self.kept, "as they were", "changed")
        return self.exact.evidence(right, {"weights": self.can.weights, "activations": self.can.activations})


def _one_hot(bench: Bench, k: int, experts: int) -> tuple[Matrix, Groups]:
    groups = bench.groups(*[k] * experts)
    return bench.spread_matrix(
        of_values(torch.eye(k).repeat(experts, 1).double(), bench.can.activations), groups
    ), groups


@claim("quant.swiglu.pairing")
def pairing(stack: Stack, context: Context) -> Evidence:
    """Gates of 32 and more, where SiLU is the identity, beside ups of 1, and ups at random beside gates of 32: each
    output tells which gate and which up made it, bit for bit."""
    bench = Bench(stack, context)
    generator = bench.generator()
    for half in sorted({bench.half(size) for size in _HALVES}):
        k = bench.shape(1, 64)[1]
        a, groups = _one_hot(bench, k, 2)
        values = random_elements((2, half, k), generator)
        flat, loud = torch.ones_like(values), torch.full_like(values, 4)
        for name, weights, due in (
            ("up", torch.cat([loud, values], 1), values * 8 * 32),
            ("gate", torch.cat([values.abs() * 1.0, flat], 1), None),
        ):
            power = 3 if name == "up" else 6
            b = bench.scaled(weights, power)
            bench.limit = None
            got = bench.once(a, b, groups)
            want = due if due is not None else values.abs() * 64 * 64
            bench.exact.same(f"{half} outputs, {name}", got[: 2 * k].double(), want.transpose(1, 2).flatten(0, 1))
    return bench.evidence("each output is made of its own gate and its own up")


@claim("quant.swiglu.clamp")
def clamp(stack: Stack, context: Context) -> Evidence:
    """All pairs of gate and up out of -2 L, -L, -L / 2, 0, L / 2, L, 2 L, at limits 8 and 1: at 8 the order of clamp
    and SiLU does not show in BF16, at 1 it does."""
    bench = Bench(stack, context)
    k, half = bench.shape(1, 64)[1], bench.half(24)
    steps = torch.tensor([-4.0, -2, -1, 0, 1, 2, 4])
    gate, up = torch.zeros(k), torch.zeros(k)
    gate[:49], up[:49] = torch.cartesian_prod(steps, steps).T
    rows = torch.cat([gate.repeat(half, 1), up.repeat(half, 1)])[None].double()
    a, groups = _one_hot(bench, k, 1)
    for limit, power in ((8.0, 2), (1.0, -1)):
        bench.judge(f"limit {limit:g}", a, bench.scaled(rows, power), groups, limit)
    bench.judge("no limit", a, bench.scaled(rows, 2), groups, None)
    return bench.evidence("gate clamped from above, up on both sides, before SiLU")


@claim("quant.swiglu.alpha")
def alpha(stack: Stack, context: Context) -> Evidence:
    """Global scales go in before SiLU, gate's and up's each on its own."""
    bench = Bench(stack, context)
    k, half = bench.shape(1, 64)[1], bench.half(24)
    a, groups = _one_hot(bench, k, 2)
    values = random_elements((2, 2 * half, k), bench.generator())
    of_b = torch.tensor([[0.25, 4.0], [0.37, 0.5]]) if bench.can.halves else torch.tensor([0.25, 0.37])
    for limit in (None, 1.0):
        bench.judge(f"limit {limit}", a, bench.scaled(values, 0), groups, limit, of_b)
    return bench.evidence("SiLU sees gates with their global scale")


@claim("quant.swiglu.extremes")
def extremes(stack: Stack, context: Context) -> Evidence:
    """Gates from -96 to 96: where exp overflows float32, the result is 0 or the gate, and no NaN."""
    bench = Bench(stack, context)
    k, half = bench.shape(1, 64)[1], bench.half(24)
    a, groups = _one_hot(bench, k, 1)
    values = random_elements((1, 2 * half, k), bench.generator())
    values[:, half:] = 1
    bench.judge("gates up to 96", a, bench.scaled(values, 4), groups, None)
    return bench.evidence("no gate is too large for SiLU")


@claim("quant.swiglu.bound")
def bound(stack: Stack, context: Context) -> Evidence:
    """Random operands: errors of the sums, passed on by SwiGLU's slopes, and one rounding."""
    bench = Bench(stack, context)
    generator = bench.generator()
    for half, deep in ((72, 192), (136, 80)):
        n, k = 2 * bench.half(half), bench.shape(1, deep)[1]
        groups = bench.groups(40, 0, 129, 3)
        some = random_scales((4, n, k // bench.block), bench.can.weights, generator, narrow=True)
        b = of_values(random_elements((4, n, k), generator), bench.can.weights, some)
        left = torch.randint(-2, 3, (172, k), generator=generator).double() / 4
        a = bench.spread_matrix(of_values((left * 2).round() / 2, bench.can.activations), groups)
        for limit in (None, 10.0):
            bench.judge(f"{half} outputs, K {k}, limit {limit}", a, b, groups, limit)
    return bench.evidence("every element within the bound")


@claim("quant.swiglu.isolation")
def isolation(stack: Stack, context: Context) -> Evidence:
    """A NaN in one row's activations makes its whole row NaN, with a limit and without, unless it is declared to be
    swallowed; the other rows keep their bits."""
    bench = Bench(stack, context)
    n, k = 2 * bench.half(24), bench.shape(1, 64)[1]
    groups = bench.groups(9, 0, 35)
    b = of_values(random_elements((3, n, k), bench.generator()), bench.can.weights)
    a = bench.spread_matrix(of_values(torch.ones(44, k).double(), bench.can.activations), groups)
    row = groups.offsets[2] + 33
    others = torch.zeros(groups.rows, dtype=torch.bool)
    for _, rows in bench.rows(groups):
        others[rows] = True
    others[row] = False
    for limit in (None, 10.0):
        bench.limit = limit
        clean = bench.once(a, b, groups)
        spoilt = Matrix(a.format, a.codes.clone(), None if a.scales is None else a.scales.clone())
        if spoilt.scales is None:
            spoilt.codes[row, 5] = torch.nan
        else:
            spoilt.scales[row, 0] = 0x7F if a.format == "nvfp4" else 0xFF
        got = bench.once(spoilt, b, groups)
        bench.exact.same(f"limit {limit}: the other rows", got[others].double(), clean[others].double())
        if bench.can.nan == "visible":
            whole = torch.ones(n // 2, dtype=torch.bool)
            bench.exact.same(f"limit {limit}: the row with a NaN is one", got[row].isnan(), whole)
    return bench.evidence("a NaN stays in its row, and is seen there")


@claim("quant.swiglu.quantised")
def quantised(stack: Stack, context: Context) -> Evidence:
    """The result in NVFP4. Ties at every power of two, byte for byte: gates of 32 beside ups that are sums of four
    elements; then random operands, scales and codes within what the product is known to."""
    bench = Bench(stack, context)
    if not bench.can.quantises:
        raise NotSupported(f"{bench.can.runs} gives no quantised result (`quantises` is empty)")
    judge = Judge(bench.exact, bench.can.rules)
    step = math.lcm(16, bench.can.steps[0])
    for half in (-(-size // step) * step for size in (48, 136)):
        b, due = _tied_ups(bench, half)
        groups = bench.groups(5, 0, 130, 9)
        a, power = _powers(bench, groups, b.codes.shape[2])
        for scale in (2.0**4, 2.0**9):
            q = bench.quantised(a, b, groups, None, scale)
            for expert, rows in bench.rows(groups):
                x = due[expert] * torch.exp2(power[rows].double())[:, None]
                judge.equal(f"{half} outputs, global scale {scale:g}, expert {expert}", x, _cut(q, rows))
    n, k = 2 * (-(-136 // step) * step), bench.shape(1, 80)[1]
    generator, groups = bench.generator(5), bench.groups(40, 129, 3)
    some = random_scales((3, n, k // bench.block), bench.can.weights, generator, narrow=True)
    b = of_values(random_elements((3, n, k), generator), bench.can.weights, some)
    left = torch.randint(-2, 3, (172, k), generator=generator).double() / 2
    a = bench.spread_matrix(of_values(left, bench.can.activations), groups)
    for limit in (None, 10.0):
        q = bench.quantised(a, b, groups, limit, 0.37)
        for expert, rows in bench.rows(groups):
            found = bench.product(a.values[rows], b.values[expert], limit, bench.can.quantises)
            judge.near(f"random, limit {limit}, expert {expert}", found.exact, found.radius, _cut(q, rows))
    return bench.evidence("the result is quantised as a quantiser would have it, from the product alone")


def _tied_ups(bench: Bench, half: int) -> tuple[Matrix, torch.Tensor]:
    """[gate; up] of four experts, and what they make of a row of `_powers` (4, half): 2^7 times TIES, shuffled. Ups are
    sums of the first four columns, gates stand in column 32."""
    generator, k = bench.generator(half), bench.shape(1, 64)[1]
    order = torch.rand(4, half // 16, 16, generator=generator).argsort(-1).flatten(1)
    sign = torch.randint(0, 2, order.shape, generator=generator) * 2 - 1
    ups = (TIES * 4)[order].double()
    values = torch.zeros(4, 2 * half, k, dtype=torch.float64)
    values[:, :half, 32] = 4
    rest, grid = ups.clone(), torch.tensor([0, 1, 2, 3, 4, 6], dtype=torch.float64)
    for column in range(4):
        part = grid[torch.searchsorted(grid, rest, right=True) - 1]
        values[:, half:, column], rest = part * sign, rest - part
    assert not bool(rest.any())
    one, eight = (0x38, 0x50) if bench.can.weights == "nvfp4" else (127, 130)
    scales = torch.full((4, 2 * half, k // bench.block), one, dtype=torch.uint8)
    scales[:, :half] = eight
    return of_values(values, bench.can.weights, scales), ups * sign * 32


def _powers(bench: Bench, groups: Groups, k: int) -> tuple[Matrix, torch.Tensor]:
    """Rows of 2^p in the first four columns and 1 in column 32; p (rows,) from -3 to 3."""
    power = torch.arange(groups.rows) % 7 - 3
    row = torch.zeros(groups.rows, k, dtype=torch.float64)
    row[:, :4], row[:, 32] = 1, 1
    if bench.can.activations == "bf16":
        row[:, :4] *= torch.exp2(power.double())[:, None]
        return of_values(row, "bf16"), power
    nvfp4 = bench.can.activations == "nvfp4"
    scales = torch.full((groups.rows, k // BLOCK[bench.can.activations]), 0x38 if nvfp4 else 127)
    scales[:, 0] += power * (8 if nvfp4 else 1)
    return of_values(row, bench.can.activations, scales.byte()), power


def _cut(q: Quantized, rows: slice) -> Quantized:
    return q._replace(codes=q.codes[rows], scales=q.scales[rows])
