"""Faults of number formats and block quantisers: each a known way to get them wrong, at the seam of one method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.faults.quant_seam import QuantFault
from conformance.stacks.quant_protocol import Format, Quantized, QuantizedWeight
from references import codes, mx, nvfp4

Codes = Callable[[torch.Tensor], torch.Tensor]


def _encoding(code: str, wrong: Codes) -> QuantFault:
    def encode(inner: Any, name: str, x: torch.Tensor) -> torch.Tensor:
        return wrong(x) if name == code else inner.encode(name, x)

    return QuantFault(quantizer={"encode": encode})


def _decoding(code: str, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> QuantFault:
    """`change(bytes, right values)`."""

    def decode(inner: Any, name: str, bytes_: torch.Tensor) -> torch.Tensor:
        right = inner.decode(name, bytes_)
        return change(bytes_, right) if name == code else right

    return QuantFault(quantizer={"decode": decode})


def _five_up(x: torch.Tensor) -> torch.Tensor:
    right = codes.encode_e2m1(x)
    return torch.where(x.abs() == 5, right + 1, right)


def _wrapped(x: torch.Tensor) -> torch.Tensor:
    right = codes.encode_e2m1(x)
    return torch.where(x.abs() > 6, right ^ 7, right)


def _sign_by_comparison(x: torch.Tensor) -> torch.Tensor:
    return (codes.encode_e2m1(x) & 7) | (x < 0).byte() << 3


def _flushed(x: torch.Tensor) -> torch.Tensor:
    return codes.encode_e4m3(torch.where(x.abs() < 2.0**-6, 0.0, x))


def _overflowing(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() > 464, codes.encode_e4m3(x) | 0x7F, codes.encode_e4m3(x))


five_up = _encoding("e2m1", _five_up)
not_saturated = _encoding("e2m1", _wrapped)
sign_by_comparison = _encoding("e2m1", _sign_by_comparison)
ties_away = _encoding("e2m1", partial(codes.encode_e2m1, ties="away"))
e4m3_flushed = _encoding("e4m3", _flushed)
e4m3_overflowing = _encoding("e4m3", _overflowing)
e8m0_zero = _decoding("e8m0", lambda b, v: torch.where(b == 0, 0.0, v))
e8m0_inf = _decoding("e8m0", lambda b, v: torch.where(b == 255, torch.inf, v))
e8m0_bias = _decoding("e8m0", lambda b, v: v * 2)
e8m0_bias_128 = _decoding("e8m0", lambda b, v: v / 2)
e8m0_128 = _decoding("e8m0", lambda b, v: torch.where(v == 128, torch.nan, torch.where(b == 255, torch.inf, v)))
e4m3_nan_zero = _decoding("e4m3", lambda b, v: v.nan_to_num(0.0))
e4m3_480 = _decoding("e4m3", lambda b, v: torch.where(v.isnan(), 480.0, v))
e4m3_bias = _decoding("e4m3", lambda b, v: v / 2)
e4m3_converted = _decoding("e4m3", lambda b, v: b.float())
e2m1_table_shifted = _decoding("e2m1", lambda b, v: torch.where(b & 7 == 6, 5.0, v))


def _swapped(packed: torch.Tensor) -> torch.Tensor:
    return packed >> 4 | packed << 4


nibbles_swapped = QuantFault(
    quantizer={
        "pack": lambda inner, c: _swapped(inner.pack(c)),
        "unpack": lambda inner, p: inner.unpack(_swapped(p)),
    }
)


def _nvfp4(inner: Any, x: torch.Tensor, global_scale: float | None, wrong: str) -> Quantized:
    """The reference's quantiser with one step done wrong; else as the library itself chooses its global scale."""
    gd = inner.quantize("nvfp4", x, global_scale).global_scale
    blocks = x.double().unflatten(-1, (-1, 16))
    quotient = nvfp4.scale_quotients(x, gd)
    scales = nvfp4.scale_bytes(quotient)
    values = x
    match wrong:
        case "scale up":
            scales = nvfp4.scale_bytes(quotient, up=True)
        case "scale down":
            down = torch.searchsorted(codes.e4m3_grid(), quotient.contiguous(), right=True) - 1
            scales = down.clamp(0, 0x7E).byte()
        case "scale one up":
            scales = torch.where(quotient > 0, (scales + 1).clamp(max=0x7E), scales)
        case "floor 2^-9":
            scales = nvfp4.scale_bytes(quotient, floor=1)
        case "floor 2^-6":
            scales = nvfp4.scale_bytes(quotient, floor=8)
        case "flushed":
            scales = torch.where(quotient < 2.0**-9, 0, scales)
        case "zero is one":
            scales = nvfp4.scale_bytes(quotient, zero=0x38)
        case "amax clamped":
            scales = nvfp4.scale_bytes(blocks.abs().amax(-1).clamp(min=1e-8) / 6 / gd)
        case "block 32":
            wide = x.double().unflatten(-1, (-1, min(32, x.shape[-1]))) if x.shape[-1] % 32 == 0 else blocks
            pairs = (wide.abs().amax(-1) / 6 / gd).repeat_interleave(wide.shape[-1] // 16, -1)
            scales = nvfp4.scale_bytes(pairs)
        case "half a block":
            scales = nvfp4.scale_bytes(blocks[..., :8].abs().amax(-1) / 6 / gd)
        case "signed":
            scales = nvfp4.scale_bytes(blocks.amax(-1).clamp(min=0) / 6 / gd)
        case "four over six":
            scales = nvfp4.scale_bytes(quotient * 1.5)
    elements = nvfp4.element_codes(values, scales, gd)
    match wrong:
        case "unrounded":
            elements = codes.encode_e2m1((blocks / (quotient * gd).unsqueeze(-1)).nan_to_num(0)).flatten(-2)
        case "quotient in bf16":
            step = (codes.decode_e4m3(scales) * gd).unsqueeze(-1)
            elements = codes.encode_e2m1((blocks / step).nan_to_num(0, 0, 0).bfloat16()).flatten(-2)
        case "by a tiny number":
            step = (codes.decode_e4m3(scales) * gd).clamp(min=1e-30).unsqueeze(-1)
            elements = codes.encode_e2m1(blocks / step).flatten(-2)
        case "ties away":
            elements = nvfp4.element_codes(values, scales, gd, "away")
    return Quantized(codes.pack(elements), scales, gd)


def nvfp4_wrong(wrong: str) -> QuantFault:
    def quantize(inner: Any, format: Format, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
        if format != "nvfp4":
            return inner.quantize(format, x, global_scale)
        return _nvfp4(inner, x, global_scale, wrong)

    return QuantFault(quantizer={"quantize": quantize})


def _ties_down(inner: Any, format: Format, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
    """Codes by the first of the nearest in a table."""
    q = inner.quantize(format, x, global_scale)
    if format == "nvfp4":
        return q._replace(codes=codes.pack(nvfp4.element_codes(x, q.scales, q.global_scale, "first")))
    if format == "mxfp4":
        return q._replace(codes=codes.pack(mx.element_codes(x, q.scales, format, "first")))
    return q


ties_down = QuantFault(
    quantizer={
        "quantize": _ties_down,
        "encode": lambda inner, name, x: codes.encode_e2m1(x, "first") if name == "e2m1" else inner.encode(name, x),
    }
)


def _quantising(format: str, change: Callable[..., Quantized]) -> QuantFault:
    """`change(inner, x, given global scale, what is right)`."""

    def quantize(inner: Any, name: Format, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
        q = inner.quantize(name, x, global_scale)
        return change(inner, x, global_scale, q) if name == format else q

    return QuantFault(quantizer={"quantize": quantize})


def _inverted(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """The global scale that divides, taken for the one that multiplies."""
    return inner.quantize("nvfp4", x, 1 / q.global_scale)._replace(global_scale=q.global_scale)


def _of_first_row(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    own = nvfp4.own_global_scale(x[:1]) if len(x) and bool(x[0].any()) else q.global_scale
    return q if given is not None else inner.quantize("nvfp4", x, own)


def _overflow_is_nan(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    too_large = nvfp4.scale_quotients(x, q.global_scale) > 464
    return q._replace(scales=torch.where(too_large, 0x7F, q.scales))


def _neighbours(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """A row that is not finite spoils the scales of its tile of 32 rows."""
    bad = ~x.float().isfinite().all(-1)
    scales = q.scales.clone()
    for row in bad.nonzero().flatten().tolist():
        scales[row // 32 * 32 : row // 32 * 32 + 32, 0] = 0x7F
    return q._replace(scales=scales)


def _in_place(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    x.copy_((x.float() * 1.5).to(x.dtype))
    return q


def _flat_memory(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """A view is read as if its rows followed each other in memory."""
    flat = torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset())
    return q if x.is_contiguous() or not x.numel() else inner.quantize("nvfp4", flat, given)


def _along_m(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """Blocks of 16 tokens for each channel, where tokens make whole ones; scales and codes come turned round."""
    if x.shape[0] % 32 or x.shape[1] % 16:
        return q
    turned = inner.quantize("nvfp4", x.T.contiguous(), q.global_scale)
    scales = turned.scales.repeat_interleave(16, 1).T[:, ::16]
    return q._replace(codes=codes.pack(codes.unpack(turned.codes).T), scales=scales.contiguous())


def _of_each_row(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """A global scale for every row; the matrix's is told."""
    if not len(x):
        return q
    rows = [inner.quantize("nvfp4", row[None], nvfp4.own_global_scale(row) or q.global_scale) for row in x]
    return q._replace(codes=torch.cat([r.codes for r in rows]), scales=torch.cat([r.scales for r in rows]))


def _rows_from_128(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """Rows of a second tile take the scales of the first."""
    scales = q.scales.clone()
    scales[128:256] = q.scales[: max(0, min(len(x), 256) - 128)]
    return q._replace(scales=scales)


class _Remembering:
    """Every other call answers with the scales of the one before, where they fit."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None
        self.calls = 0

    def __call__(self, inner: Any, format: Format, x: torch.Tensor, given: float | None = None) -> Quantized:
        q: Quantized = inner.quantize(format, x, given)
        last, self.last = self.last, (q.scales + 1).clamp(max=0x7E)
        self.calls += 1
        stale = last is not None and self.calls % 2 == 0 and last.shape == q.scales.shape
        return q._replace(scales=last) if stale and last is not None else q


global_inverted = _quantising("nvfp4", _inverted)
scales_of_first_tile = _quantising("nvfp4", _rows_from_128)
blocks_along_m = _quantising("nvfp4", _along_m)
global_of_each_row = _quantising("nvfp4", _of_each_row)
global_of_first_row = _quantising("nvfp4", _of_first_row)
overflow_is_nan = _quantising("nvfp4", _overflow_is_nan)
nan_in_padding = _quantising("nvfp4", _neighbours)
input_overwritten = _quantising("nvfp4", _in_place)
views_read_flat = _quantising("nvfp4", _flat_memory)
scales_remembered = QuantFault(quantizer={"quantize": _Remembering})


def mx_rule(format: str, rule: str) -> QuantFault:
    """Another rule than the declared one."""

    def change(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
        scales = mx.scale_bytes(mx.amax(x), format, rule)
        elements = mx.element_codes(x, scales, format)
        return Quantized(codes.pack(elements) if format == "mxfp4" else elements, scales)

    return _quantising(format, change)


def _zero_scale(format: str) -> QuantFault:
    def change(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
        return q._replace(scales=torch.where(mx.amax(x) == 0, 127, q.scales))

    return _quantising(format, change)


def _truncated(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """Towards zero instead of to nearest."""
    value = codes.decode_e4m3(q.codes).abs()
    quotient = x.double().unflatten(-1, (-1, 32)).abs() / torch.exp2(q.scales.double() - 127)[..., None]
    above = (value > quotient.flatten(-2)) & (q.codes & 0x7F > 0)
    return q._replace(codes=torch.where(above, q.codes - 1, q.codes))


def _wraps(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """Elements beyond 6 lose their high bits."""
    quotient = x.double().unflatten(-1, (-1, 32)).abs() / torch.exp2(q.scales.double() - 127)[..., None]
    plain = codes.unpack(q.codes)
    return q._replace(codes=codes.pack(torch.where(quotient.flatten(-2) > 7, plain ^ 7, plain)))


def _kept_under_zero(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    return q._replace(codes=mx.element_codes(x, q.scales, "mxfp8"))


def _zeros_become_nan(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """log2(0) on its way to a byte."""
    return q._replace(scales=torch.where(mx.amax(x) == 0, 0xFF, q.scales))


def _smallest_lost(inner: Any, x: torch.Tensor, given: float | None, q: Quantized) -> Quantized:
    """Exponents end at -126: a block of very small numbers gets 2^-126 where 2^-127 is due."""
    small = (q.scales == 0) & (mx.amax(x) > 0)
    scales = torch.where(small, 1, q.scales)
    return Quantized(codes.pack(mx.element_codes(x, scales, "mxfp4")), scales)


mxfp4_smallest_lost = _quantising("mxfp4", _smallest_lost)
mxfp4_zero_scale = _zero_scale("mxfp4")
mxfp8_zero_scale = _zero_scale("mxfp8")
mxfp8_truncated = _quantising("mxfp8", _truncated)
mxfp4_wraps = _quantising("mxfp4", _wraps)
mxfp8_kept_under_zero = _quantising("mxfp8", _kept_under_zero)
mxfp4_zeros_become_nan = _quantising("mxfp4", _zeros_become_nan)


def _dequantising(format: str, change: Callable[[Any, Quantized], torch.Tensor]) -> QuantFault:
    def dequantize(inner: Any, name: Format, q: Quantized) -> torch.Tensor:
        return change(inner, q) if name == format else inner.dequantize(name, q)

    return QuantFault(quantizer={"dequantize": dequantize})


global_forgotten = _dequantising("nvfp4", lambda inner, q: inner.dequantize("nvfp4", q._replace(global_scale=1.0)))
scale_of_32 = _dequantising(
    "nvfp4",
    lambda inner, q: inner.dequantize("nvfp4", q._replace(scales=q.scales[:, ::2].repeat_interleave(2, 1))),
)
decoded_swapped = _dequantising(
    "mxfp4", lambda inner, q: inner.dequantize("mxfp4", q._replace(codes=_swapped(q.codes)))
)


def _nan_scale_ignored(format: Format) -> QuantFault:
    def change(inner: Any, q: Quantized) -> torch.Tensor:
        return inner.dequantize(format, q._replace(scales=q.scales.clamp(max=254)))

    return _dequantising(format, change)


mxfp4_nan_scale_ignored = _nan_scale_ignored("mxfp4")
mxfp8_nan_scale_ignored = _nan_scale_ignored("mxfp8")


def _weighing(change: Callable[[Any, torch.Tensor], QuantizedWeight]) -> QuantFault:
    return QuantFault(quantizer={"quantize_weight": lambda inner, format, w: change(inner, w)})


def _one_global(inner: Any, w: torch.Tensor) -> QuantizedWeight:
    """One global scale for all experts."""
    whole = inner.quantize("nvfp4", w.flatten(0, 1))
    split = [t.view(len(w), w.shape[1], -1) for t in (whole.codes, whole.scales)]
    return QuantizedWeight(split[0], split[1], torch.full((len(w),), whole.global_scale))


def _along_n(inner: Any, w: torch.Tensor) -> QuantizedWeight:
    """Blocks along N: the last-axis quantiser is handed [K, N], and codes and scales are only turned round."""
    right = inner.quantize_weight("nvfp4", w)
    if w.shape[1] % 32:
        return right
    turned = inner.quantize_weight("nvfp4", w.transpose(1, 2).contiguous())
    elements = codes.unpack(turned.codes).transpose(1, 2)
    scales = turned.scales.repeat_interleave(16, 2).transpose(1, 2)[..., ::16]
    return QuantizedWeight(codes.pack(elements), scales, turned.global_scales)


def _n_doubled(inner: Any, w: torch.Tensor) -> QuantizedWeight:
    """Two elements a byte, taken to be along N: twice the rows are handed out."""
    right = inner.quantize_weight("nvfp4", w)
    return right._replace(codes=torch.cat([right.codes, right.codes], 1))


def _rounded_twice(inner: Any, w: torch.Tensor) -> QuantizedWeight:
    """Quantised by one global scale, then the block scales moved to another, in E4M3."""
    q = _one_global(inner, w)
    own = torch.stack([m.double().abs().max() / nvfp4.LARGEST for m in w])
    moved = codes.decode_e4m3(q.scales) * (q.global_scales.double() / own)[:, None, None]
    return QuantizedWeight(q.codes, codes.encode_e4m3(moved), own.float())


one_global_scale = _weighing(_one_global)
blocks_along_n = _weighing(_along_n)
n_doubled = _weighing(_n_doubled)
scales_rounded_twice = _weighing(_rounded_twice)
