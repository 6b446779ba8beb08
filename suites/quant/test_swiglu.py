"""A grouped GEMM that ends in SwiGLU, black-box: pairs of gate and up tell themselves; crafted pairs show the
clamp."""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import fused_swiglu
from suites.quant.exact import Exact
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
        for expert, (start, size) in enumerate(zip(groups.offsets, groups.sizes, strict=True)):
            rows = slice(start, start + size)
            due = fused_swiglu.bounded(
                a.values[rows],
                weights[expert],
                limit,
                self.can.output,
                self.can.accumulation,
                self.can.rounding == "bf16_h",
            )
            low, high = due.exact - due.radius, due.exact + due.radius
            self.exact.inside(f"{what}, expert {expert}", got[rows], low, high)

    def evidence(self, right: str) -> Evidence:
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
