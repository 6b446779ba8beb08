"""Single numbers, every one of them: all codes decoded; all BF16 numbers, every tie and its neighbours encoded."""

from __future__ import annotations

import msgspec
import torch

from conformance.context import Context
from conformance.result import Evidence
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from references import codes
from suites.quant.bench import Bench, around, every_bfloat16, middles
from suites.quant.exact import Exact, Where

_BYTES = torch.arange(256, dtype=torch.uint8)
_HUGE = torch.tensor([torch.inf, 3.0e38, 2.0**30, 2.0**27, 2.0**26, 1.0e5])


def numbers(grid: torch.Tensor, nan: bool) -> torch.Tensor:
    x = torch.cat([every_bfloat16(), around(middles(grid)), around(grid[1:]), _HUGE, -_HUGE])
    return torch.cat([x, torch.tensor([torch.nan])]) if nan else x


def _of(x: torch.Tensor) -> Where:
    return lambda index: f"of {x[index].item():.9g}"


@claim("quant.e2m1.decode")
def e2m1_decode(stack: Stack, context: Context) -> Evidence:
    bench = Bench(stack, context, "e2m1.decode")
    exact = Exact(bench.can.runs)
    sixteen = _BYTES[:16]
    got = bench.quantizer.decode("e2m1", bench.to(sixteen)).cpu()
    exact.same("value of code", got.double(), codes.decode_e2m1(sixteen))
    dropped = bench.can.codes.e2m1_negative_zero != "kept"
    exact.true("code 8", dropped or bool(torch.signbit(got[8])), "-0", "+0")
    return exact.evidence("all sixteen codes decode to their values")


@claim("quant.e2m1.encode")
def e2m1_encode(stack: Stack, context: Context) -> Evidence:
    bench = Bench(stack, context, "e2m1.encode")
    rules, exact = bench.can.codes, Exact(bench.can.runs)
    x = numbers(codes.e2m1_grid(), rules.e2m1_nan is not None)
    want = codes.encode_e2m1(x, rules.e2m1_ties)
    if rules.e2m1_nan is not None:
        want[x.isnan()] = rules.e2m1_nan
    got = bench.quantizer.encode("e2m1", bench.to(x)).cpu()
    if rules.e2m1_negative_zero != "kept":
        want = torch.where(want == 8, 0, want)
    if rules.e2m1_negative_zero == "either":
        got = torch.where(got == 8, 0, got)
    exact.same("code", got, want, _of(x))
    return exact.evidence("every number gets the code that the declared rules give it", msgspec.to_builtins(rules))


@claim("quant.e2m1.pack")
def pack(stack: Stack, context: Context) -> Evidence:
    """Every byte, and rows of every length from 2: the even element of a pair along K is in the low nibble."""
    bench = Bench(stack, context, "pack", "unpack")
    exact, generator = Exact(bench.can.runs, bench.seed), bench.generator()
    every = _BYTES.view(8, 32)
    shapes = [(1, 2), (3, 4), (5, 48), (16, 30), (7, 160)]
    matrices = [codes.unpack(every), *(torch.randint(0, 16, s, generator=generator).byte() for s in shapes)]
    for one in matrices:
        packed = bench.quantizer.pack(bench.to(one)).cpu()
        exact.same("packed byte", packed, codes.pack(one))
        exact.same("unpacked code", bench.quantizer.unpack(bench.to(codes.pack(one))), one)
    return exact.evidence("two codes a byte, along K, the even one low")


@claim("quant.e4m3.decode")
def e4m3_decode(stack: Stack, context: Context) -> Evidence:
    bench = Bench(stack, context, "e4m3.decode")
    exact = Exact(bench.can.runs)
    exact.same("value of code", bench.quantizer.decode("e4m3", bench.to(_BYTES)).double(), codes.decode_e4m3(_BYTES))
    return exact.evidence("all 256 codes decode to their values, 0x7F and 0xFF to NaN")


@claim("quant.e4m3.encode")
def e4m3_encode(stack: Stack, context: Context) -> Evidence:
    bench = Bench(stack, context, "e4m3.encode")
    rules, exact = bench.can.codes, Exact(bench.can.runs)
    x = numbers(codes.e4m3_grid(), nan=True)
    want = codes.encode_e4m3(x)
    if rules.e4m3_overflow == "nan":  # 464 lies between 448 and what would be 480: to even, 448
        want = torch.where(x.abs() > 464, want | codes.NAN_E4M3, want)
    got = bench.quantizer.encode("e4m3", bench.to(x)).cpu()
    exact.same("code", got, want, _of(x), but=x.isnan() & (got & 0x7F == codes.NAN_E4M3))
    return exact.evidence("every number gets the code that the declared rules give it", msgspec.to_builtins(rules))


@claim("quant.e8m0.decode")
def e8m0_decode(stack: Stack, context: Context) -> Evidence:
    bench = Bench(stack, context, "e8m0.decode")
    rules, exact = bench.can.codes, Exact(bench.can.runs)
    want = codes.decode_e8m0(_BYTES)
    want[0] = {"0": 0.0, "2^-127": 2.0**-127}[rules.e8m0_zero]
    want[255] = {"nan": torch.nan, "inf": torch.inf, "2^128": 2.0**128}[rules.e8m0_nan]
    exact.same("value of byte", bench.quantizer.decode("e8m0", bench.to(_BYTES)).double(), want)
    return exact.evidence("all 256 bytes decode as declared", msgspec.to_builtins(rules))
