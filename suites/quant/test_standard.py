"""What the standards leave no choice in, measured: whatever a library declares of itself, each deviation has a name
here.

Where a standard leaves a choice (the scale rule of MX, scales too small for E4M3, NaN), what was chosen is noted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.stacks.quant_protocol import Format, Quantized
from conformance.suite import claim
from suites.quant.bench import Bench, unpacked

_NORMAL_BYTE = 127  # E8M0: 1


class _Deviations:
    def __init__(self, bench: Bench):
        self.bench, self.findings, self.looked_at, self.notes = bench, list[Finding](), 0, list[str]()

    def check(self, name: str, holds: bool, where: str, expected: object, got: object) -> None:
        """`name`: the deviation, should it not hold."""
        self.looked_at += 1
        if not holds:
            self.findings.append(Finding(where, str(expected), str(got), name))

    def evidence(self, source: str) -> Evidence:
        names = list(dict.fromkeys(f.meaning for f in self.findings))
        return Evidence(
            ok=not names and self.looked_at > 0,
            summary=f"as {source} has it" if not names else f"deviates from {source}: {', '.join(names)}",
            expected=f"none of {self.looked_at} probes deviates",
            measured=names,
            findings=self.findings[:12],
            notes=self.notes,
            method=self.bench.can.runs,
        )


@claim("quant.standard.e2m1")
def e2m1(stack: Stack, context: Context) -> Evidence:
    bench = Bench(stack, context)
    found = _Deviations(bench)
    if "e2m1.encode" in bench.can.offers:
        _look(found, bench, "e2m1-ties-down", {0.75: 2, 1.75: 4, 3.5: 6})
        _look(found, bench, "e2m1-ties-up", {0.25: 0, 1.25: 2, 2.5: 4, 5.0: 6})
        _look(found, bench, "e2m1-inf-not-saturated", {torch.inf: 7, -torch.inf: 15})
        _look(found, bench, "e2m1-large-not-saturated", {7.0: 7, 1.0e3: 7, 2.0**28: 7, -3.0e38: 15})
        _look(found, bench, "e2m1-nearest", {0.26: 1, 0.74: 1, 1.1: 2, 4.9: 6, 5.1: 7, -2.4: 12})
        zero = int(bench.quantizer.encode("e2m1", bench.to(torch.tensor([-0.1])))[0])
        found.notes.append(f"choice: -0.1 becomes code {zero}")
        nan = int(bench.quantizer.encode("e2m1", bench.to(torch.tensor([torch.nan])))[0])
        found.notes.append(f"choice: NaN {'becomes code ' + str(nan) if nan < 16 else 'stays NaN, which is no code'}")
    elif "nvfp4.quantize" in bench.can.offers:
        # A block of sixteen with a 6 in it, global scale 1: its scale is 1, and elements are codes' values.
        values = {0.75: 2, 1.75: 4, 3.5: 6, 0.25: 0, 1.25: 2, 2.5: 4, 5.0: 6}
        block = torch.tensor([[6.0, *values, *[0.0] * 8]])
        got = unpacked("nvfp4", bench.quantized("nvfp4", block.to(bench.dtypes[0]), 1.0))[0, 1:8].tolist()
        for (x, due), code in zip(values.items(), got, strict=True):
            found.check("e2m1-ties-down" if code < due else "e2m1-ties-up", code == due, f"{x} in a block", due, code)
    else:
        raise NotSupported(f"{stack.name} neither encodes E2M1 nor quantises to NVFP4")
    return found.evidence("OCP MX v1.0, 5.3.3, and PTX `cvt.rn.satfinite.e2m1x2`")


def _look(found: _Deviations, bench: Bench, name: str, due: dict[float, int]) -> None:
    got = bench.quantizer.encode("e2m1", bench.to(torch.tensor(list(due)))).tolist()
    for (x, code), seen in zip(due.items(), got, strict=True):
        found.check(name, seen == code, f"code of {x:g}", code, seen)


@claim("quant.standard.e4m3")
def e4m3(stack: Stack, context: Context) -> Evidence:
    bench = Bench(stack, context)
    found = _Deviations(bench)
    if "e4m3.encode" in bench.can.offers:
        probes = [0.0, 2.0**-10, 1.5 * 2.0**-9, 2.0**-6, 1.0, 448.0, 460.0]
        due = [0x00, 0x00, 0x02, 0x08, 0x38, 0x7E, 0x7E]
        got = bench.quantizer.encode("e4m3", bench.to(torch.tensor(probes))).tolist()
        for x, code, seen in zip(probes, due, got, strict=True):
            found.check("e4m3-rounding", code == seen, f"code of {x:g}", hex(code), hex(seen))
        inf = int(bench.quantizer.encode("e4m3", bench.to(torch.tensor([torch.inf])))[0])
        found.check("e4m3-inf-not-448-or-nan", inf in (0x7E, 0x7F), "code of Inf", "0x7e or 0x7f", hex(inf))
        found.notes.append(f"choice: Inf becomes {inf:#04x}")
    if "e4m3.decode" in bench.can.offers:
        bytes_ = torch.tensor([0x01, 0x08, 0x7E, 0x7F], dtype=torch.uint8)
        tiny, normal, most, nan = bench.quantizer.decode("e4m3", bench.to(bytes_)).tolist()
        found.check("e4m3-subnormal", tiny == 2.0**-9, "byte 0x01", 2.0**-9, tiny)
        found.check("e4m3-bias", (normal, most) == (2.0**-6, 448.0), "bytes 0x08, 0x7e", "2^-6, 448", (normal, most))
        found.check("e4m3-nan-decoded", nan != nan, "byte 0x7f", "NaN", nan)
    if not found.looked_at:
        raise NotSupported(f"{stack.name} neither encodes nor decodes E4M3")
    return found.evidence("OCP 8-bit Floating Point v1.0")


@claim("quant.standard.e8m0")
def e8m0(stack: Stack, context: Context) -> Evidence:
    """Bytes 0x00 and 0xFF by themselves where the library decodes scales, and as the scale of a block of ones."""
    bench = Bench(stack, context)
    found = _Deviations(bench)
    bytes_ = torch.tensor([0, 1, 127, 254, 255], dtype=torch.uint8)
    if "e8m0.decode" in bench.can.offers:
        _exponents(found, "byte", bench.quantizer.decode("e8m0", bench.to(bytes_)).tolist())
    for format, one in (("mxfp4", 0x22), ("mxfp8", 0x38)):
        if f"{format}.dequantize" in bench.can.offers:
            width = 16 if format == "mxfp4" else 32
            q = Quantized(torch.full((5, width), one, dtype=torch.uint8), bytes_[:, None])
            values = _dequantized(bench, format, q)[:, 0].tolist()  # type: ignore[arg-type]
            _exponents(found, f"1 in {format} under scale byte", values)
    if not found.looked_at:
        raise NotSupported(f"{stack.name} decodes no E8M0")
    return found.evidence("OCP MX v1.0, 5.4.1")


def _dequantized(bench: Bench, format: Format, q: Quantized) -> torch.Tensor:
    return bench.quantizer.dequantize(format, Quantized(bench.to(q.codes), bench.to(q.scales), q.global_scale)).cpu()


def _exponents(found: _Deviations, what: str, got: list[float]) -> None:
    low, one, middle, high, nan = got
    found.check("e8m0-zero-decoded-as-0", low == 2.0**-127, f"{what} 0x00", "2^-127", low)
    powers = (one, middle, high)
    found.check("e8m0-bias", powers == (2.0**-126, 1.0, 2.0**127), f"{what} 1, 127, 254", "2^-126, 1, 2^127", powers)
    name = "e8m0-nan-decoded-as-inf" if nan == torch.inf else "e8m0-nan-decoded"
    found.check(name, nan != nan, f"{what} 0xFF", "NaN", nan)


@claim("quant.standard.blocks")
def blocks(stack: Stack, context: Context) -> Evidence:
    """What no choice of rules may do: make something of zeros, lose more than a quarter of a block's amax (which
    OCP's own rule for MX may lose), or make a NaN of finite numbers."""
    bench = Bench(stack, context)
    found = _Deviations(bench)
    for format, look in _LOOKS.items():
        if f"{format}.quantize" in bench.can.offers:
            look(found, bench)
    if not found.looked_at:
        raise NotSupported(f"{stack.name} quantises no blocks")
    return found.evidence("OCP MX v1.0, 6.3, and NVFP4's amax / 6")


def _nvfp4(found: _Deviations, bench: Bench) -> None:
    zeros = torch.zeros(1, 32, dtype=bench.dtypes[0])
    q = bench.quantized("nvfp4", zeros, 1.0)
    found.check("nvfp4-zero-block", not bool((unpacked("nvfp4", q) & 7).any()), "codes of zeros", 0, q.codes.tolist())
    found.check("nvfp4-zero-block-nan", bool((q.scales != 0x7F).all()), "scale of zeros", "a number", q.scales.tolist())
    found.notes.append(f"choice: a block of zeros has scale byte {int(q.scales[0, 0]):#04x}")
    tiny = zeros.clone()
    tiny[0, 0] = 6 * 2.0**-12
    q = bench.quantized("nvfp4", tiny, 1.0)
    code, scale = int(unpacked("nvfp4", q)[0, 0]), int(q.scales[0, 0])
    found.check("nvfp4-code-under-zero-scale", scale > 0 or code & 7 == 0, "amax 6 * 2^-12", "code 0", code)
    found.notes.append(f"choice: amax 6 * 2^-12 gets scale byte {scale:#04x}")


def _mx(format: Format, largest: float) -> Callable[[_Deviations, Bench], None]:
    def look(found: _Deviations, bench: Bench) -> None:
        x = torch.zeros(1, 64, dtype=bench.dtypes[0])
        q = bench.quantized(format, x)
        zero = bool((unpacked(format, q) & 0x7F == 0).all()) and int(q.scales[0, 0]) != 0xFF
        found.check(f"{format}-zero-block", zero, "zeros", "zeros", (q.codes.tolist(), q.scales.tolist()))
        found.notes.append(f"choice: a block of zeros has scale byte {int(q.scales[0, 0])} in {format}")
        amax = torch.tensor([1.0, 1.25, 1.5, 1.75, 1.9375, 2.5, 3.0, 5.0, 6.0, 7.0])
        x = torch.zeros(len(amax), 32, dtype=bench.dtypes[0])
        x[:, 3] = amax.to(x.dtype)
        ratio = amax.double() * torch.exp2(_NORMAL_BYTE - bench.quantized(format, x).scales[:, 0].double()) / largest
        most = float(ratio.max())
        found.check(f"{format}-amax-cut", most < 4 / 3, f"largest amax / ({largest:g} * scale)", "below 4 / 3", most)
        found.notes.append(f"choice: amax up to {most:.4g} of the largest element in {format}: {_rule(bench, format)}")

    return look


def _rule(bench: Bench, format: Format) -> str:
    return (bench.can.mxfp4 if format == "mxfp4" else bench.can.mxfp8).scale


_LOOKS: dict[str, Callable[[_Deviations, Bench], None]] = {
    "nvfp4": _nvfp4,
    "mxfp4": _mx("mxfp4", 6.0),
    "mxfp8": _mx("mxfp8", 448.0),
}
