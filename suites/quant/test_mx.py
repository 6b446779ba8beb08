"""MXFP4 and MXFP8: scale bytes by the declared rule; codes, exact for the scale as stored; zeros; decoding."""

from __future__ import annotations

import msgspec
import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.stacks.quant_protocol import Format, MxRules, Quantized
from conformance.suite import claim
from references import codes, mx
from suites.quant.bench import Bench, middles, mixed, unpacked
from suites.quant.exact import Exact

#: What float32 and an approximate reciprocal may move a quotient by: see references/nvfp4.py.
_E = 2.0**-21
_DIVIDING = ("rceil", "trunc")


@claim("quant.mxfp4.scale")
def mxfp4_scale(stack: Stack, context: Context) -> Evidence:
    return _scale(stack, context, "mxfp4")


@claim("quant.mxfp8.scale")
def mxfp8_scale(stack: Stack, context: Context) -> Evidence:
    return _scale(stack, context, "mxfp8")


@claim("quant.mxfp4.codes")
def mxfp4_codes(stack: Stack, context: Context) -> Evidence:
    return _codes(stack, context, "mxfp4")


@claim("quant.mxfp8.codes")
def mxfp8_codes(stack: Stack, context: Context) -> Evidence:
    return _codes(stack, context, "mxfp8")


@claim("quant.mxfp4.zero")
def mxfp4_zero(stack: Stack, context: Context) -> Evidence:
    return _zero(stack, context, "mxfp4")


@claim("quant.mxfp8.zero")
def mxfp8_zero(stack: Stack, context: Context) -> Evidence:
    return _zero(stack, context, "mxfp8")


@claim("quant.mxfp4.dequantize")
def mxfp4_dequantize(stack: Stack, context: Context) -> Evidence:
    return _dequantize(stack, context, "mxfp4")


@claim("quant.mxfp8.dequantize")
def mxfp8_dequantize(stack: Stack, context: Context) -> Evidence:
    return _dequantize(stack, context, "mxfp8")


def _rules(bench: Bench, format: Format) -> MxRules:
    return bench.can.mxfp4 if format == "mxfp4" else bench.can.mxfp8


def _wide(bench: Bench) -> torch.dtype:
    """A type with float32's range."""
    return torch.bfloat16 if torch.bfloat16 in bench.dtypes else torch.float32


def _scale(stack: Stack, context: Context, format: Format) -> Evidence:
    """Blocks with one element that is not zero: every BF16 mantissa at powers from 2^-110 to 2^120, the format's
    largest element among them. Rules without a division are exact, down to the smallest normal number; with one, so
    are the powers of two times the largest element."""
    bench = Bench(stack, context, f"{format}.quantize")
    exact, rules = Exact(bench.can.runs, bench.seed), _rules(bench, format)
    mantissa = 1 + torch.arange(128).double() / 128
    powers = torch.tensor([-110, -64, -20, -3, -2, -1, 0, 1, 2, 5, 8, 9, 31, 100, 120])
    if rules.scale not in _DIVIDING:  # with a division, quotients may be flushed there
        powers = torch.cat([torch.tensor([-126, -125, -124, -117]), powers])
    amax = (mantissa * torch.exp2(powers.double())[:, None]).flatten()
    place = torch.randint(0, 32, (len(amax),), generator=bench.generator())
    x = torch.zeros(len(amax), 32)
    x[torch.arange(len(amax)), place] = amax.float() * (1 - 2 * (place % 2)).float()
    got = bench.quantized(format, x.to(_wide(bench))).scales[:, 0]
    slack = _E if rules.scale in _DIVIDING else 0.0
    low, high = (mx.scale_bytes(amax * (1 + e), format, rules.scale) for e in (-slack, slack))
    largest, _ = mx.ELEMENTS[format]
    tie = torch.frexp(amax)[0] == torch.frexp(torch.tensor(largest, dtype=torch.float64))[0]
    sharp = mx.scale_bytes(amax, format, rules.scale)
    low, high = torch.where(tie, sharp, low), torch.where(tie, sharp, high)
    exact.inside("scale byte", got, low, high, lambda index: f"of amax {amax[index].item():g}", "d")
    generator = bench.generator(1)
    for dtype in bench.dtypes:
        x = mixed(64, 512, 32, (-6, 6), generator).to(dtype)
        low, high = (mx.scale_bytes(mx.amax(x) * (1 + e), format, rules.scale) for e in (-slack, slack))
        exact.inside(f"{dtype}: scale byte", bench.quantized(format, x).scales, low, high, show="d")
    return exact.evidence(f"scales by the rule `{rules.scale}`", msgspec.to_builtins(rules))


def _codes(stack: Stack, context: Context, format: Format) -> Evidence:
    """Dividing by a power of two is exact, so every code is: on normal numbers, and on blocks made of ties."""
    bench = Bench(stack, context, f"{format}.quantize")
    exact, ties = Exact(bench.can.runs, bench.seed), bench.can.codes.e2m1_ties
    generator = bench.generator()
    grid = codes.e2m1_grid() if format == "mxfp4" else codes.e4m3_grid()
    tie = torch.cat([middles(grid), grid]).float()
    some = tie[torch.randint(0, len(tie), (256, 64), generator=generator)]
    some *= torch.randint(0, 2, some.shape, generator=generator) * 2 - 1
    some[:, ::32] = float(grid[-1])
    inputs = {"ties": some * 2.0**-3, "normal": torch.randn(64, 2048, generator=generator)}
    inputs["mixed"] = mixed(64, 512, 32, (-60, 60), generator)
    for name, x in inputs.items():
        for dtype in bench.dtypes:
            if dtype == torch.float16 and name == "mixed":
                continue  # beyond its range
            given = x.to(dtype)
            q = bench.quantized(format, given)
            got, want = unpacked(format, q), mx.element_codes(given, q.scales, format, ties)
            sign = 8 if format == "mxfp4" else 128
            exact.same(f"{name}, {dtype}: code", got, want, but=(got | want) & (sign - 1) == 0)
    return exact.evidence("every code is the nearest to its quotient by the scale as stored")


def _zero(stack: Stack, context: Context, format: Format) -> Evidence:
    """Blocks of zeros; and blocks so small that their scale byte is 0, whose elements are kept or dropped as
    declared."""
    bench = Bench(stack, context, f"{format}.quantize")
    exact, rules, dtype = Exact(bench.can.runs, bench.seed), _rules(bench, format), _wide(bench)
    x = torch.randn(5, 96, generator=bench.generator())
    x[1, 32:64], x[3] = 0, -0.0
    q = bench.quantized(format, x.to(dtype))
    empty = mx.amax(x) == 0
    mask = 7 if format == "mxfp4" else 0x7F
    magnitude = unpacked(format, q).unflatten(1, (-1, 32))[empty] & mask
    exact.same("magnitude of zeros", magnitude, torch.zeros_like(magnitude))
    if rules.zero_scale is not None:
        got = q.scales[empty]
        exact.same("scale byte of zeros", got, torch.full_like(got, rules.zero_scale), show="d")
    tiny = torch.randn(8, 64, generator=bench.generator(1)).clamp(-4, 4) * 2.0**-122
    tiny[:4] *= 2.0**-6
    q = bench.quantized(format, tiny.to(dtype))
    given = tiny.to(dtype).float()
    want = mx.element_codes(given, q.scales, format, bench.can.codes.e2m1_ties, rules.zero_byte == "zero")
    got = unpacked(format, q)
    exact.same("code of something tiny", got, want, but=(got | want) & mask == 0)
    exact.true("scales", bool((q.scales != 0xFF).all()), "numbers", "NaN")
    return exact.evidence("zeros stay zeros, and the smallest blocks are as declared", msgspec.to_builtins(rules))


def _dequantize(stack: Stack, context: Context, format: Format) -> Evidence:
    """Every scale byte with every packed byte, exact; a scale byte of 0xFF makes its whole block NaN (or what the
    library declares), and none beside it."""
    bench = Bench(stack, context, f"{format}.dequantize")
    exact, rules = Exact(bench.can.runs), bench.can.codes
    scales = torch.arange(255, dtype=torch.uint8)
    scales = scales[scales != 0] if rules.e8m0_zero == "0" else scales
    blocks = 16 if format == "mxfp4" else 8
    elements = torch.arange(256, dtype=torch.uint8).repeat(len(scales), 1)
    grid = scales[:, None].repeat(1, blocks)
    plain = codes.unpack(elements) if format == "mxfp4" else elements
    want = mx.dequantize(plain, grid, format)
    got = _run(bench, format, elements, grid).double()
    inside = want.abs() < 3.3e38  # 448 * 2^127 is beyond float32, which the result is in
    tiny = want.abs() < 2.0**-126  # subnormal results may be flushed, or rounded to BF16's steps of 2^-133
    right = tiny & ((got == 0) | ((got - want).abs() <= 2.0**-134))
    got = torch.where(right, want, got)
    exact.same("value", got, want, but=~inside)
    grid = torch.full((4, blocks), 127, dtype=torch.uint8)
    grid[1, 2] = 255
    got = _run(bench, format, elements[:4], grid)
    spoilt = torch.zeros(4, blocks, dtype=torch.bool)
    spoilt[1, 2] = True
    number = ~got.isfinite().unflatten(1, (-1, 32)).all(-1)
    plain_nan = mx.dequantize(plain[:4], torch.full_like(grid, 127), format).isnan().unflatten(1, (-1, 32)).any(-1)
    exact.same("blocks that are not finite", number, spoilt | plain_nan)
    if rules.e8m0_nan == "nan":
        whole = got.isnan().unflatten(1, (-1, 32)).all(-1)
        exact.true(
            "the block under 0xFF", bool(whole[1, 2]), "NaN, all of it", str(got.unflatten(1, (-1, 32))[1, 2, :4])
        )
    return exact.evidence("value = element * 2^(byte - 127)")


def _run(bench: Bench, format: Format, elements: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return bench.quantizer.dequantize(format, Quantized(bench.to(elements), bench.to(scales))).cpu()
