"""NVFP4's quantiser: bytes that are exact where every factor is a power of two, and an interval everywhere else."""

from __future__ import annotations

import msgspec
import torch

from conformance.context import Context
from conformance.errors import StackRefused
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.stacks.quant_protocol import Quantized
from conformance.suite import claim
from references import codes, nvfp4
from suites.quant.bench import Bench, mixed, tie_blocks, unpacked
from suites.quant.exact import Exact
from suites.quant.judge import Judge

_E = nvfp4.EPSILON
#: Block scales 2^j that E4M3 holds exactly, and global scales to go with them.
_POWERS = range(-6, 9)
_GLOBALS = (2.0**-5, 1.0, 2.0**3)


def judging(stack: Stack, context: Context, *needs: str) -> tuple[Bench, Exact, Judge]:
    bench = Bench(stack, context, "nvfp4.quantize", *needs)
    exact = Exact(bench.can.runs, bench.seed)
    return bench, exact, Judge(exact, bench.can.nvfp4, bench.can.codes.e2m1_ties)


def _evidence(exact: Exact, bench: Bench, right: str) -> Evidence:
    rules = msgspec.to_builtins(bench.can.nvfp4) | {"e2m1_ties": bench.can.codes.e2m1_ties}
    return exact.evidence(right, rules)


@claim("quant.nvfp4.ties")
def ties(stack: Stack, context: Context) -> Evidence:
    """Every tie of E2M1 at every power of two: each factor is exact, so that only the rounding rule decides."""
    bench, exact, judge = judging(stack, context)
    powers = torch.tensor([j for j in _POWERS for _ in range(64)])
    for global_scale in _GLOBALS:
        x = tie_blocks(powers, bench.generator()).view(len(powers) // 8, 128) * global_scale
        for dtype in bench.dtypes:
            if dtype == torch.float16 and global_scale < 1:
                continue  # 0.25 * 2^-6 * 2^-5 is subnormal there
            q = bench.quantized("nvfp4", x.to(dtype), global_scale)
            judge.equal(f"{dtype}, global scale {global_scale:g}", x, q)
    return _evidence(exact, bench, "scales and codes byte for byte, ties by the declared rule")


@claim("quant.nvfp4.interval")
def interval(stack: Stack, context: Context) -> Evidence:
    """Normal numbers, and blocks of very different sizes: what float32 arithmetic may make of them, and no more."""
    bench, exact, judge = judging(stack, context)
    generator = bench.generator()
    inputs = {
        "normal": torch.randn(8, 7168, generator=generator),
        "mixed": mixed(32, 1024, 16, (-14, 9), generator),
        "narrow": torch.randn(33, 48, generator=generator),
        "tall": mixed(257, 48, 16, (-6, 7), generator),
    }
    for dtype in bench.dtypes:
        for name, x in inputs.items():
            given = x.to(dtype)
            judge.interval(f"{name}, {dtype}", given, bench.quantized("nvfp4", given, nvfp4.own_global_scale(given)))
            judge.interval(f"{name}, {dtype}, 0.37", given, bench.quantized("nvfp4", given, 0.37 / 64))
    return _evidence(exact, bench, "every scale and every code within the roundings of float32")


@claim("quant.nvfp4.zero")
def zero(stack: Stack, context: Context) -> Evidence:
    """Blocks of zeros among others, and nothing but zeros, at global scales from 2^-40 to 2^10 and at their own."""
    bench, exact, judge = judging(stack, context)
    x = torch.randn(6, 96, generator=bench.generator())
    x[0], x[2, 16:48], x[5, 80:], x[4, :16] = 0, 0, 0, -0.0
    empty = x.unflatten(1, (-1, 16)).abs().amax(-1) == 0
    for power in (-40, -20, -9, 0, 10):
        q = bench.quantized("nvfp4", (x * 2.0**power).to(torch.float32).to(bench.dtypes[0]), 2.0**power)
        what = f"global scale 2^{power}"
        exact.same(
            f"{what}: scale byte of zeros", q.scales[empty], torch.full_like(q.scales[empty], judge.rules["zero"])
        )
        codes_ = unpacked("nvfp4", q).unflatten(1, (-1, 16))[empty] & 7
        exact.same(f"{what}: magnitude of zeros", codes_, torch.zeros_like(codes_))
    if "nvfp4.own_global" not in bench.can.offers:
        return _evidence(exact, bench, "zeros stay zeros, their scales are as declared, no NaN")
    q = bench.quantized("nvfp4", torch.zeros(4, 64, dtype=bench.dtypes[0]))
    good = 0 < q.global_scale < float("inf")
    exact.true("own global scale of zeros", good, "finite, above 0", f"{q.global_scale}")
    exact.same("codes of zeros alone", q.codes & 0x77, torch.zeros_like(q.codes))
    return _evidence(exact, bench, "zeros stay zeros, their scales are as declared, no NaN")


@claim("quant.nvfp4.underflow")
def underflow(stack: Stack, context: Context) -> Evidence:
    """Blocks whose scale is about E4M3's smallest: 2^-10 is a tie and becomes 0, all above becomes 2^-9 (to nearest);
    under a scale of 0 all codes are 0. A quotient by a tiny number instead gives noise at full size."""
    bench, exact, judge = judging(stack, context)
    generator = bench.generator()
    quotients = [2.0**-20, 2.0**-11, 2.0**-10 * (1 - 2**-5), 2.0**-10, 2.0**-10 * (1 + 2**-5), 2.0**-9 * (1 - 2**-5)]
    quotients += [2.0**-9, 1.5 * 2.0**-9, 2.0**-8, 2.0**-6]
    for power in (-30, 0, 12):
        x = torch.rand(len(quotients) * 8, 16, generator=generator).mul_(2).sub_(1).bfloat16().float()
        x[:, 3] = 1
        x *= (torch.tensor(quotients, dtype=torch.float64).repeat_interleave(8) * 6 * 2.0**power).float()[:, None]
        for dtype in (d for d in bench.dtypes if d != torch.float16):
            given = x.to(dtype)
            q = bench.quantized("nvfp4", given, 2.0**power)
            what = f"{dtype}, global scale 2^{power}"
            quotient = nvfp4.scale_quotients(given, 2.0**power)
            exact.same(f"{what}: scale byte", q.scales, nvfp4.scale_bytes(quotient, **judge.rules))
            judge.codes(what, given, q)
            silent = (q.scales == 0).repeat_interleave(16, 1)
            loud = (unpacked("nvfp4", q) & 7 != 0) & silent
            exact.same(f"{what}: codes under a scale of 0", loud, torch.zeros_like(loud))
    return _evidence(exact, bench, "small blocks round as declared; codes are zero where the scale is")


@claim("quant.nvfp4.saturation")
def saturation(stack: Stack, context: Context) -> Evidence:
    """A global scale too small for its input: scales end at 448 and codes at 6; nothing becomes NaN."""
    bench, exact, judge = judging(stack, context)
    x = torch.randn(16, 256, generator=bench.generator())
    for factor in (2.0, 100.0, 2.0**20, 2.0**60):
        given = (x * factor).to(torch.bfloat16 if torch.bfloat16 in bench.dtypes else bench.dtypes[0])
        q = bench.quantized("nvfp4", given, nvfp4.own_global_scale(x))
        judge.interval(f"{factor:g} times too large", given, q)
        exact.true(f"{factor:g}: scales", bool((q.scales <= 0x7E).all()), "numbers", "NaN or negative")
    return _evidence(exact, bench, "what is too large saturates, scale and element alike")


@claim("quant.nvfp4.global")
def global_scale(stack: Stack, context: Context) -> Evidence:
    """amax / 2688 of each input, whatever its size; the same bytes when it is given; the same bytes for input and
    global scale times 2^n; signs alone change with the input's."""
    bench, exact, judge = judging(stack, context)
    x = torch.randn(24, 320, generator=bench.generator()).bfloat16().float()
    x[-1, -1] = -7  # amax in the last place
    dtype = torch.bfloat16 if torch.bfloat16 in bench.dtypes else bench.dtypes[0]
    own = "nvfp4.own_global" in bench.can.offers
    exact.notes += [] if own else ["no global scale of its own: callers bring theirs"]
    for power in (-30, -3, 0, 5, 40) if own else ():
        given = (x * 2.0**power).to(dtype)
        q = bench.quantized("nvfp4", given)
        due = nvfp4.own_global_scale(given)
        close = abs(q.global_scale / due - 1) <= _E
        exact.true(f"own global scale of 2^{power} x", close, f"{due:g}", f"{q.global_scale:g}", "amax / 2688")
        judge.interval(f"2^{power} x", given, q)
        again = bench.quantized("nvfp4", given, q.global_scale)
        exact.same(f"2^{power} x, its own given: scale byte", again.scales, q.scales)
        exact.same(f"2^{power} x, its own given: code", again.codes, q.codes)
    base = bench.quantized("nvfp4", x.to(dtype), 2.0**-9)
    for power in (-8, 7):
        moved = bench.quantized("nvfp4", (x * 2.0**power).to(dtype), 2.0 ** (power - 9))
        exact.same(f"both times 2^{power}: scale byte", moved.scales, base.scales)
        exact.same(f"both times 2^{power}: code", moved.codes, base.codes)
    negative = bench.quantized("nvfp4", (-x).to(dtype), 2.0**-9)
    exact.same("-x: scale byte", negative.scales, base.scales)
    old, new = unpacked("nvfp4", base), unpacked("nvfp4", negative)
    exact.same("-x: code", new, old ^ 8, but=(old & 7) == 0)
    return _evidence(exact, bench, "value = code * scale * global scale, amax / 2688 its own")


@claim("quant.nvfp4.idempotent")
def idempotent(stack: Stack, context: Context) -> Evidence:
    """Quantised values, quantised again by the same global scale, give the same bytes, wherever a block has a 6 in it
    and its scale is normal. (Other blocks may legally get another scale.)"""
    bench, exact, _ = judging(stack, context)
    dtype = torch.bfloat16 if torch.bfloat16 in bench.dtypes else bench.dtypes[0]
    x = mixed(64, 512, 16, (-4, 5), bench.generator()).to(dtype)
    first = bench.quantized("nvfp4", x, 2.0**-5)
    values = nvfp4.dequantize(nvfp4.Nvfp4(unpacked("nvfp4", first), first.scales), 2.0**-5)
    second = bench.quantized("nvfp4", values.to(dtype), 2.0**-5)
    magnitude = unpacked("nvfp4", first).unflatten(1, (-1, 16)) & 7
    held = (magnitude.amax(-1) == 7) & (first.scales >= 0x08) & (first.scales < 0x7E)
    exact.true("blocks with a 6", int(held.sum()) > 1000, "more than 1000", str(int(held.sum())))
    exact.same("scale byte", second.scales, first.scales, but=~held)
    either = unpacked("nvfp4", first)
    exact.same("code", unpacked("nvfp4", second), either, but=~held.repeat_interleave(16, 1) | (either & 7 == 0))
    return _evidence(exact, bench, "what was quantised once stays as it is")


@claim("quant.nvfp4.rows")
def rows(stack: Stack, context: Context) -> Evidence:
    """Each row by itself: NaN and garbage in rows behind, rows in another order, a view into a larger matrix, and the
    same call again give the same bytes; the input is left as it is."""
    bench, exact, _ = judging(stack, context)
    generator = bench.generator()
    dtype = torch.bfloat16 if torch.bfloat16 in bench.dtypes else bench.dtypes[0]
    x = torch.randn(37, 160, generator=generator).to(dtype)
    base = bench.quantized("nvfp4", x, 0.01)

    def compare(what: str, given: torch.Tensor, order: torch.Tensor | slice = slice(37)) -> None:
        q = bench.quantized("nvfp4", given, 0.01)
        exact.same(f"{what}: scale byte", q.scales[:37], base.scales[order])
        exact.same(f"{what}: code", q.codes[:37], base.codes[order])

    for filler in (torch.nan, torch.inf, 3.0e38):
        compare(f"{filler:g} in rows behind", torch.cat([x, torch.full((27, 160), filler, dtype=dtype)]))
    order = torch.randperm(37, generator=generator)
    compare("rows in another order", x[order], order)
    wide = torch.full((80, 224), torch.nan, dtype=dtype)
    wide[5:79:2, 32:192] = x
    view, what = wide[5:79:2, 32:192], "every other row of a larger matrix"
    if bench.can.views == "taken":
        compare(what, view)
    else:
        exact.raises(what, lambda: bench.quantized("nvfp4", view, 0.01), "declared to be refused")
    kept = x.clone()
    for n in range(3):
        compare(f"the same call, time {n + 2}", x)
    exact.same("the input afterwards", x, kept)
    try:
        empty = bench.quantized("nvfp4", x[:0], 0.01)
        shapes = f"{tuple(empty.codes.shape)} and {tuple(empty.scales.shape)}"
    except StackRefused as error:
        shapes = f"refused: {error}"
    exact.true("an input of no rows", shapes == "(0, 80) and (0, 10)", "(0, 80) and (0, 10)", shapes)
    return _evidence(exact, bench, "no row depends on another, nor on where it lies")


@claim("quant.nvfp4.dequantize")
def dequantize(stack: Stack, context: Context) -> Evidence:
    """Every scale byte that is a number with every packed byte; exact at a power of two, else to float32's
    rounding."""
    bench = Bench(stack, context, "nvfp4.dequantize")
    exact = Exact(bench.can.runs)
    number = torch.arange(codes.NAN_E4M3)[:, None] + 37 * torch.arange(32)
    scales = (number % codes.NAN_E4M3).byte()
    packed = torch.arange(256, dtype=torch.uint8).repeat(codes.NAN_E4M3, 1)
    for global_scale in (1.0, 2.0**-11, 0.37):
        q = Quantized(bench.to(packed), bench.to(scales), global_scale)
        want = nvfp4.dequantize(nvfp4.Nvfp4(codes.unpack(packed), scales), global_scale)
        got = bench.quantizer.dequantize("nvfp4", q).double()
        slack = 0.0 if global_scale != 0.37 else _E
        low, high = want - want.abs() * slack, want + want.abs() * slack
        exact.inside(f"global scale {global_scale:g}", got, low, high)
    return exact.evidence("value = element * scale * global scale")


@claim("quant.nvfp4.weight")
def weight(stack: Stack, context: Context) -> Evidence:
    """Matrices (E, N, K) with N no multiple of K and of very different sizes: blocks along K, row by row, each matrix
    (or half of one) with a global scale of its own."""
    bench = Bench(stack, context, "nvfp4.weight")
    exact = Exact(bench.can.runs, bench.seed)
    judge = Judge(exact, bench.can.nvfp4, bench.can.codes.e2m1_ties)
    dtype = torch.bfloat16 if torch.bfloat16 in bench.dtypes else bench.dtypes[0]
    halves = 2 if bench.can.weight_global == "half" else 1
    for experts, rows_, columns in ((1, 16, 48), (3, 40, 96), (3, 96, 48), (2, 32, 16)):
        w = torch.randn(experts, rows_, columns, generator=bench.generator(rows_))
        w *= torch.exp2(3.0 * torch.arange(experts))[:, None, None]
        w[:, rows_ // 2 :] *= 0.2
        w[:, :, 7 % columns] *= 5  # sizes differ along K and along N
        w = w.to(dtype)
        q = bench.quantizer.quantize_weight("nvfp4", bench.to(w))
        where = f"({experts}, {rows_}, {columns})"
        shapes = [tuple(q.codes.shape), tuple(q.scales.shape), q.global_scales.numel()]
        due = [(experts, rows_, columns // 2), (experts, rows_, columns // 16), experts * halves]
        exact.true(f"shapes of {where}", shapes == due, str(due), str(shapes))
        if shapes != due:
            continue
        global_scales = q.global_scales.cpu().view(experts, halves).tolist()
        for expert in range(experts):
            for half, part in enumerate(w[expert].split(rows_ // halves)):
                place = slice(half * rows_ // halves, (half + 1) * rows_ // halves)
                own, what = global_scales[expert][half], f"{where}, matrix {expert}, half {half}"
                ratio = own / nvfp4.own_global_scale(part)
                exact.true(f"global scale of {what}", abs(ratio - 1) <= _E, "amax / 2688", f"{ratio:g} times that")
                one = Quantized(q.codes[expert, place].cpu(), q.scales[expert, place].cpu(), own)
                judge.interval(what, part, one)
    return _evidence(exact, bench, "each matrix on its own, blocks along K")
