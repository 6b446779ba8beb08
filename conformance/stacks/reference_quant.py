"""The reference stack's quantiser: on the bits of float32, and layouts by view and permute.

Nothing here is of `references/`, which looks codes up in tables and computes where each byte lies.
"""

from __future__ import annotations

import torch

from conformance.errors import StackRefused
from conformance.stacks import reference_numerics as numerics
from conformance.stacks.quant_protocol import (
    BLOCK,
    CodeRules,
    Format,
    MxRules,
    QuantCapabilities,
    Quantized,
    QuantizedWeight,
)

_EVERYTHING = (
    "e2m1.encode e2m1.decode e4m3.encode e4m3.decode e8m0.decode pack unpack "
    "nvfp4.quantize nvfp4.own_global nvfp4.dequantize nvfp4.weight "
    "mxfp4.quantize mxfp4.dequantize mxfp8.quantize mxfp8.dequantize swizzle unswizzle groups experts interleave "
    "deinterleave k_major"
)


def encode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Rounded to a step of 0.5, 1 or 2; then a float's exponent and first mantissa bit, moved down, are the code."""
    size = x.float().abs().nan_to_num(nan=0.0, posinf=6.0).clamp(max=6)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    value = (size / step).round() * step
    code = (value * 2.0**-126).view(torch.int32) >> 22
    return (code | torch.signbit(x).int() << 3).to(torch.uint8)


def encode_e4m3(x: torch.Tensor) -> torch.Tensor:
    size = x.float().abs().clamp(max=448)
    _, exponent = torch.frexp(size)
    step = torch.ldexp(torch.ones_like(size), (exponent - 4).clamp(min=-9))
    value = ((size / step).round() * step).clamp(max=448)
    code = (value * 2.0**-120).view(torch.int32) >> 20 | torch.signbit(x).int() << 7
    return torch.where(x.isnan(), 0x7F, code).to(torch.uint8)


def decode_e2m1(codes: torch.Tensor) -> torch.Tensor:
    value = ((codes & 7).int() << 22).view(torch.float32) * 2.0**126
    return torch.where(codes > 7, -value, value)


def decode_e4m3(codes: torch.Tensor) -> torch.Tensor:
    low = (codes & 0x7F).int()
    value = (low << 20).view(torch.float32) * 2.0**120
    value = torch.where(codes > 0x7F, -value, value)
    return value.masked_fill(low == 0x7F, torch.nan)


def pack(codes: torch.Tensor) -> torch.Tensor:
    pairs = codes.unflatten(-1, (-1, 2))
    return pairs[..., 0] + 16 * pairs[..., 1]


def unpack(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack((packed % 16, packed // 16), -1).flatten(-2)


class ReferenceQuantizer:
    def capabilities(self) -> QuantCapabilities:
        return QuantCapabilities(
            offers=frozenset(_EVERYTHING.split()),
            runs="the reference stack's own, in float32 on a CPU",
            inputs=("bfloat16", "float16", "float32"),
            codes=CodeRules(e2m1_nan=0),
            mxfp8=MxRules("rceil", zero_byte="zero"),
        )

    def encode(self, code: str, x: torch.Tensor) -> torch.Tensor:
        return encode_e2m1(x) if code == "e2m1" else encode_e4m3(x)

    def decode(self, code: str, codes: torch.Tensor) -> torch.Tensor:
        return {"e2m1": decode_e2m1, "e4m3": decode_e4m3, "e8m0": numerics.scales}[code](codes)

    def pack(self, codes: torch.Tensor) -> torch.Tensor:
        return pack(codes)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        return unpack(packed)

    def quantize(self, format: Format, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
        blocks = _blocks(x, BLOCK[format])
        if format == "nvfp4":
            return nvfp4(blocks, global_scale)
        power = _mx_power(blocks.abs().amax(-1), format)
        scaled = torch.ldexp(blocks.double(), -power[..., None]).float()
        if format == "mxfp4":
            return Quantized(pack(encode_e2m1(scaled).flatten(-2)), (power + 127).to(torch.uint8))
        scaled = torch.where(power[..., None] > -127, scaled, scaled * 0)
        return Quantized(encode_e4m3(scaled).flatten(-2), (power + 127).to(torch.uint8))

    def dequantize(self, format: Format, q: Quantized) -> torch.Tensor:
        return dequantize(format, q.codes, q.scales) * q.global_scale

    def quantize_weight(self, format: Format, w: torch.Tensor) -> QuantizedWeight:
        each = [self.quantize(format, matrix) for matrix in w]
        return QuantizedWeight(
            torch.stack([q.codes for q in each]),
            torch.stack([q.scales for q in each]),
            torch.tensor([q.global_scale for q in each], dtype=torch.float32),
        )

    def swizzle(self, scales: torch.Tensor) -> torch.Tensor:
        return _tiled(scales)

    def unswizzle(self, flat: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        tiles = flat.view(-(-rows // 128), -(-columns // 4), 32, 4, 4).permute(0, 3, 2, 1, 4)
        return tiles.reshape(tiles.shape[0] * 128, -1)[:rows, :columns]

    def groups(self, scales: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        laid, starts, at = [_tiled(one) for one in scales], [], 0
        for one in laid:
            starts.append(at)
            at += one.numel()
        return torch.cat(laid), starts

    def experts(self, scales: torch.Tensor) -> torch.Tensor:
        return torch.stack([_tiled(one) for one in scales])

    def interleave(
        self, codes: torch.Tensor, scales: torch.Tensor, granularity: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def woven(rows: torch.Tensor) -> torch.Tensor:
            if rows.shape[1] % (2 * granularity):
                raise StackRefused(f"{rows.shape[1]} rows are not made of pairs of {granularity}")
            return rows.view(len(rows), 2, -1, granularity, rows.shape[2]).transpose(1, 2).reshape(rows.shape)

        return woven(codes), woven(scales)

    def deinterleave(self, h: torch.Tensor, granularity: int) -> torch.Tensor:
        return h.reshape(len(h), -1, 2, granularity).transpose(1, 2).reshape(h.shape)

    def k_major(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.contiguous().transpose(1, 2)


def nvfp4(blocks: torch.Tensor, global_scale: float | None) -> Quantized:
    """(M, blocks, 16) float32."""
    most = blocks.abs().amax(-1)
    if global_scale is None:
        highest = most.max() if most.numel() else most.new_zeros(())
        global_scale = float(highest / 2688) or 1.0
    scales = encode_e4m3(most / 6 / global_scale)
    step = decode_e4m3(scales)[..., None] * global_scale
    elements = torch.where(scales[..., None] > 0, blocks / step, torch.copysign(torch.zeros_like(blocks), blocks))
    return Quantized(pack(encode_e2m1(elements).flatten(-2)), scales, global_scale)


def dequantize(format: Format, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(..., K) float32, without the global scale."""
    elements = decode_e4m3(codes) if format == "mxfp8" else decode_e2m1(unpack(codes))
    factor = decode_e4m3(scales) if format == "nvfp4" else numerics.scales(scales)
    return (elements.unflatten(-1, (-1, BLOCK[format])) * factor[..., None]).flatten(-2)


def _blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    if x.shape[-1] % size:
        raise StackRefused(f"{x.shape[-1]} elements of a row make no whole blocks of {size}")
    return x.float().unflatten(-1, (-1, size))


def _mx_power(most: torch.Tensor, format: Format) -> torch.Tensor:
    """Exponents of the block scales, -127 and up, int32: rounded down for MXFP4, up for MXFP8."""
    if format == "mxfp4":
        _, exponent = torch.frexp(most)
        return torch.where(most == 0, -127, (exponent - 3).clamp(min=-127))
    mantissa, exponent = torch.frexp(most * most.new_full((), 1 / 448))
    power = exponent - (mantissa == 0.5).int()
    return torch.where(most == 0, -127, power.clamp(min=-127))


def _tiled(scales: torch.Tensor) -> torch.Tensor:
    rows, columns = scales.shape
    whole = torch.nn.functional.pad(scales, (0, -columns % 4, 0, -rows % 128))
    return whole.view(-(-rows // 128), 4, 32, -(-columns // 4), 4).permute(0, 3, 2, 1, 4).flatten()
