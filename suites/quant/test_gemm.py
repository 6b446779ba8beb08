"""A grouped GEMM, black-box: one-hot rows read its operands back through whatever layout it keeps, bit for bit;
groups tell themselves by constants; the bound is for random operands, after all that.
"""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.quant.exact import Exact
from suites.quant.operands import GemmBench, Groups, Matrix, of_values, random_elements, random_scales

#: N and K: rows of no multiple of 128, scale blocks of no multiple of 4, more than one tile each way; N is neither K
#: nor 2 K.
_SHAPES = ((136, 80), (264, 192))


def _start(stack: Stack, context: Context) -> tuple[GemmBench, Exact]:
    bench = GemmBench(stack, context)
    return bench, Exact(bench.can.runs, bench.seed)


def _evidence(bench: GemmBench, exact: Exact, right: str) -> Evidence:
    can = bench.can
    exact.true("operands afterwards", bench.kept, "as they were", "changed")
    return exact.evidence(right, {"weights": can.weights, "activations": can.activations, "output": can.output})


def _judge(bench: GemmBench, exact: Exact, what: str, got: torch.Tensor, want: torch.Tensor, groups: Groups) -> None:
    """Rows of somebody bit for bit; rows of nobody as declared."""
    nobody = torch.ones(groups.rows, dtype=torch.bool)
    for offset, size in zip(groups.offsets, groups.sizes, strict=True):
        nobody[offset : offset + size] = False
    exact.same(what, got.double(), want, but=nobody[:, None], where=lambda i: f"row {i[0]}, column {i[1]}")
    if bench.can.beyond != "anything":
        left = got[nobody].isnan() if bench.can.beyond == "untouched" else got[nobody] == 0
        exact.same(f"{what}: rows of nobody are {bench.can.beyond}", left, torch.ones_like(left))


def _one_hot(columns: torch.Tensor, k: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(columns, k).double()


@claim("quant.gemm.elements")
def elements(stack: Stack, context: Context) -> Evidence:
    """Activations one-hot, codes of the weights random, their scales 1: row k of each group is column k of its
    expert."""
    return _weights(stack, context, scaled=False)


@claim("quant.gemm.scales")
def scales(stack: Stack, context: Context) -> Evidence:
    """The same with all elements 1 and scales at random: each column shows the scale of its block."""
    return _weights(stack, context, scaled=True)


def _weights(stack: Stack, context: Context, scaled: bool) -> Evidence:
    bench, exact = _start(stack, context)
    for n, k in (bench.shape(*shape) for shape in _SHAPES):
        generator = bench.generator(n)
        groups = bench.groups(k, k, k)
        if scaled:
            some = random_scales((3, n, k // bench.block), bench.can.weights, generator)
            b = of_values(torch.ones(3, n, k), bench.can.weights, some)
        else:
            b = of_values(random_elements((3, n, k), generator), bench.can.weights)
        order = torch.randperm(k, generator=generator)
        a = bench.spread_matrix(of_values(_one_hot(order.repeat(3), k), bench.can.activations), groups)
        want = bench.spread(b.values.transpose(1, 2)[:, order].flatten(0, 1), groups)
        _judge(bench, exact, f"N {n}, K {k}", bench.once(a, b, groups), want, groups)
    return _evidence(bench, exact, "weights read back through layout and GEMM, bit for bit")


@claim("quant.gemm.activations")
def activations(stack: Stack, context: Context) -> Evidence:
    """The other way round: rows of the weights one-hot, activations and their scales at random."""
    bench, exact = _start(stack, context)
    for n, k in (bench.shape(*shape) for shape in _SHAPES):
        generator = bench.generator(n + 1)
        groups = bench.groups(1, 129, 0, 33)
        columns = torch.arange(n) * 7 % k
        b = of_values(_one_hot(columns, k).repeat(4, 1, 1), bench.can.weights)
        a = bench.spread_matrix(_random_activations(bench, 163, k, generator), groups)
        _judge(bench, exact, f"N {n}, K {k}", bench.once(a, b, groups), a.values[:, columns], groups)
    return _evidence(bench, exact, "activations and their scales are read at their own rows and blocks")


def _random_activations(bench: GemmBench, rows: int, k: int, generator: torch.Generator) -> Matrix:
    format = bench.can.activations
    values = random_elements((rows, k), generator)
    if format == "bf16":
        return of_values(values * torch.exp2(torch.randint(-9, 9, values.shape, generator=generator).double()), format)
    block = 16 if format == "nvfp4" else 32
    return of_values(values, format, random_scales((rows, k // block), format, generator))


@claim("quant.gemm.groups")
def groups(stack: Stack, context: Context) -> Evidence:
    """Expert e holds a constant of its own: each row tells which expert answered. Groups of nobody first, last and
    one after the other, of one row, and of more rows than a tile."""
    bench, exact = _start(stack, context)
    n, k = bench.shape(72, 64)
    value = torch.tensor([1, 1.5, 2, 3, 4, 6, 0.5], dtype=torch.float64)
    most = min(600, bench.can.tokens - 3)
    for sizes in (
        (0, 5, 0, 0, 131, 1, 0),
        (0, most, 0, 0, 3, 0, 0),
        (128, 1, 256, 0, 0, 7, 127),
        (0, 0, 0, 0, 0, 0, 9),
        (33, 0, 0, 0, 0, 0, 0),
    ):
        shape = bench.groups(*sizes)
        b = of_values(value[:, None, None].repeat(1, n, k), bench.can.weights)
        plain = torch.ones(sum(sizes), k, dtype=torch.float64)
        a = bench.spread_matrix(of_values(plain, bench.can.activations), shape)
        rows = torch.repeat_interleave(value * k, torch.tensor(sizes))
        want = bench.spread(rows[:, None].repeat(1, n), shape)
        _judge(bench, exact, f"groups {list(sizes)}", bench.once(a, b, shape), want, shape)
    return _evidence(bench, exact, "every row is answered by the expert of its group")


@claim("quant.gemm.global_scales")
def global_scales(stack: Stack, context: Context) -> Evidence:
    """Powers of two, another for every expert and for both sides."""
    bench, exact = _start(stack, context)
    n, k = bench.shape(40, 96)
    shape = bench.groups(3, 1, 64, 2)
    b = of_values(torch.ones(4, n, k), bench.can.weights)
    a = bench.spread_matrix(of_values(torch.ones(70, k), bench.can.activations), shape)
    of_b = torch.tensor([0.5, 8, 2.0**-7, 64])
    of_a = torch.ones(4) if bench.can.activations == "bf16" else torch.tensor([4, 2.0**-5, 2, 2.0**-9])
    sizes = torch.tensor(shape.sizes)
    want = bench.spread(torch.repeat_interleave((of_a * of_b).double() * k, sizes)[:, None].repeat(1, n), shape)
    _judge(bench, exact, "global scales", bench.once(a, b, shape, of_a, of_b), want, shape)
    return _evidence(bench, exact, "each expert by its own global scales")


@claim("quant.gemm.tails")
def tails(stack: Stack, context: Context) -> Evidence:
    """All is zero but the last elements of K, the last row and the last column."""
    bench, exact = _start(stack, context)
    for n, k in (bench.shape(*shape) for shape in ((136, 80), (129, 160), (8, 32))):
        shape = bench.groups(129, 1, 0, 31)
        rows = sum(shape.sizes)
        left, right = torch.zeros(rows, k).double(), torch.zeros(4, n, k).double()
        left[:, -1], right[:, :, -1] = 1, 2
        right[:, -1, -1] = 3
        a = bench.spread_matrix(of_values(left, bench.can.activations), shape)
        b = of_values(right, bench.can.weights)
        want = torch.full((rows, n), 2.0, dtype=torch.float64)
        want[:, -1] = 3
        _judge(bench, exact, f"N {n}, K {k}", bench.once(a, b, shape), bench.spread(want, shape), shape)
    return _evidence(bench, exact, "the ends of M, N and K are there")


@claim("quant.gemm.dense")
def dense(stack: Stack, context: Context) -> Evidence:
    """Integers whose sums stay below 256: exact in BF16 in whatever order they are added."""
    bench, exact = _start(stack, context)
    for n, k in (bench.shape(*shape) for shape in _SHAPES):
        a, b, shape = _integers(bench, n, k, (40, 0, 129, 5))
        _judge(bench, exact, f"N {n}, K {k}", bench.once(a, b, shape), _whole(bench, a, b, shape), shape)
    return _evidence(bench, exact, "sums over all of K come out exactly")


def _integers(bench: GemmBench, n: int, k: int, sizes: tuple[int, ...], turn: int = 0) -> tuple[Matrix, Matrix, Groups]:
    """`turn`: other numbers for the same shape."""
    generator, shape = bench.generator(n + k + 7919 * turn), bench.groups(*sizes)
    left = torch.randint(-1, 2, (sum(sizes), k), generator=generator).double()
    right = torch.randint(-2, 3, (len(sizes), n, k), generator=generator).double()
    a = bench.spread_matrix(of_values(left, bench.can.activations), shape)
    return a, of_values(right, bench.can.weights), shape


def _whole(bench: GemmBench, a: Matrix, b: Matrix, shape: Groups) -> torch.Tensor:
    want = bench.due(a, b, shape).exact
    assert not bool((want.abs() >= 256).any())
    return want


@claim("quant.gemm.shapes")
def shapes(stack: Stack, context: Context) -> Evidence:
    """One kernel after the other, small, large and small again, and the other way round, then with N and with K alone
    another, weights new each time; two calls of one handle with new buffers while the old ones are still there, full of
    NaN. What was compiled for the first shape, kept by too few of its sizes, or bound to the first addresses, shows."""
    bench, exact = _start(stack, context)
    small, large = ((48, 64), (3, 1, 2)), ((264, 192), (150, 0, 131))
    wider, deeper = ((136, 64), small[1]), ((48, 128), small[1])
    for turn, order in enumerate(((small, large, small), (large, small, large), (small, wider, deeper, small))):
        for place, ((wide, deep), sizes) in enumerate(order):
            n, k = bench.shape(wide, deep)
            a, b, shape = _integers(bench, n, k, sizes, 4 * turn + place)
            name = f"N {n}, K {k}, groups {list(sizes)}"
            _judge(bench, exact, name, bench.once(a, b, shape), _whole(bench, a, b, shape), shape)
    n, k = bench.shape(136, 96)
    a, b, shape = _integers(bench, n, k, (60, 4, 33))
    handle = bench.prepared(b)
    for turn in range(3):
        other = bench.spread_matrix(of_values(-a.values, a.format), Groups([0], [shape.rows], shape.rows))
        given = a if turn % 2 == 0 else other
        got = bench.run(handle, given, shape)
        _judge(bench, exact, f"call {turn + 1} of one handle", got, _whole(bench, given, b, shape), shape)
    fewer = Groups(shape.offsets, [2, 0, 33], shape.rows)
    got = bench.run(handle, a, fewer)
    _judge(bench, exact, "the same handle, smaller groups", got, _whole(bench, a, b, fewer), fewer)
    bench.kernel.close(handle)
    return _evidence(bench, exact, "no call depends on the shapes or buffers of another")


@claim("quant.gemm.isolation")
def isolation(stack: Stack, context: Context) -> Evidence:
    """A NaN in one group's activations shows in its own row, a NaN scale of an expert's weights in its group's rows and
    its column: there and nowhere else."""
    bench, exact = _start(stack, context)
    n, k = bench.shape(136, 80)
    a, b, shape = _integers(bench, n, k, (40, 3, 129))
    clean = bench.once(a, b, shape)
    row = shape.offsets[1] + 1
    if a.scales is None:
        a.codes[row, 5] = torch.nan
    else:
        a.scales[row, 1] = 0x7F if a.format == "nvfp4" else 0xFF
    got = bench.once(a, b, shape)
    exact.same("the row with a NaN", got[row].isnan(), torch.ones(n, dtype=torch.bool))
    others = torch.arange(shape.rows) != row
    exact.same("the other rows", got[others].double(), clean[others].double())
    hit = torch.zeros(shape.rows, n, dtype=torch.bool)
    hit[shape.offsets[2] : shape.offsets[2] + shape.sizes[2], 7] = True
    # All ones: what is taken for Inf or for a number does not become a NaN on the way.
    a = bench.spread_matrix(of_values(torch.ones(sum(shape.sizes), k), bench.can.activations), shape)
    b = of_values(torch.ones(3, n, k), bench.can.weights)
    assert b.scales is not None
    b.scales[2, 7, 1] = 0x7F if b.format == "nvfp4" else 0xFF
    want = bench.spread(torch.full((sum(shape.sizes), n), float(k), dtype=torch.float64), shape)
    _judge(bench, exact, "a NaN scale", bench.once(a, b, shape), want.masked_fill(hit, torch.nan), shape)
    return _evidence(bench, exact, "a NaN stays in its row, a NaN scale in its group and column")


@claim("quant.gemm.bound")
def bound(stack: Stack, context: Context) -> Evidence:
    """Random codes and scales, subnormal and zero ones among them: every element within the bound derived from the
    sum and one rounding."""
    bench, exact = _start(stack, context)
    worst = 0.0
    for n, k in (bench.shape(*shape) for shape in ((136, 80), (264, 1024))):
        generator, shape = bench.generator(k), bench.groups(64, 1, 130)
        weights = random_scales((3, n, k // bench.block), bench.can.weights, generator)
        if bench.can.weights == "nvfp4":
            weights[:, 3::17] = 3  # subnormal
            weights[:, 5::19] = 0
        b = of_values(random_elements((3, n, k), generator), bench.can.weights, weights)
        a = bench.spread_matrix(_random_activations(bench, 195, k, generator), shape)
        of_b = torch.tensor([0.37, 1.9e-3, 21.0])
        of_a = None if a.scales is None else torch.tensor([1.1e-2, 0.7, 3.3])
        got, due = bench.once(a, b, shape, of_a, of_b).double(), bench.due(a, b, shape, of_a, of_b)
        ours = ~due.exact.isnan()
        low = torch.where(ours, due.exact - due.radius, -torch.inf)
        high = torch.where(ours, due.exact + due.radius, torch.inf)
        exact.inside(f"N {n}, K {k}", torch.where(ours, got, 0.0), low, high)
        worst = max(worst, float(((got - due.exact).abs() / due.radius)[ours].nan_to_num(nan=torch.inf).max()))
    evidence = _evidence(bench, exact, f"every element within the bound; the worst at {worst:.3g} of it")
    evidence.bound = bench.can.accumulation
    evidence.notes = [f"largest error / bound: {worst:.4g}"]
    return evidence
