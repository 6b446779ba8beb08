"""Faults of layouts: scale tiles, groups, experts, gate/up rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.faults.quant_seam import QuantFault
from references import scale_layout


def _filled(scales: torch.Tensor, place: torch.Tensor, size: int, padding: int = 0) -> torch.Tensor:
    flat = torch.full((size,), padding, dtype=torch.uint8)
    inside = place < size
    flat[place[inside]] = scales[inside]
    return flat


def _offsets(wrong: str, rows: int, columns: int) -> torch.Tensor:
    """The index formula with one term wrong."""
    r, c = torch.arange(rows)[:, None], torch.arange(columns)
    across = columns // 4 if wrong == "floor" else -(-columns // 4)
    tile = r // 128 * max(across, 1) + c // 4
    if wrong == "rows first":
        tile = c // 4 * -(-rows // 128) + r // 128
    inner = r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    if wrong == "quarters":
        inner = r % 4 * 128 + r % 128 // 4 * 4 + c % 4
    if wrong == "transposed":
        inner = c % 4 * 128 + r % 128
    if wrong == "8x4":
        return (r // 8 * -(-columns // 4) + c // 4) * 32 + r % 8 * 4 + c % 4
    return tile * 512 + inner


def _swizzle(wrong: str) -> Callable[..., torch.Tensor]:
    def swizzle(inner: Any, scales: torch.Tensor) -> torch.Tensor:
        rows, columns = scales.shape
        size = scale_layout.size(rows, columns)
        right = inner.swizzle(scales)
        match wrong:
            case "none":
                return torch.nn.functional.pad(scales.flatten(), (0, size - scales.numel()))
            case "padding":
                return _filled(scales, _offsets("", rows, columns), size, 0x7F)
            case "unpadded":
                return right[: -(-rows // 32) * 32 * -(-columns // 4) * 4]
            case "twice":
                return inner.swizzle(right.view(-1, -(-columns // 4) * 4))
        return _filled(scales, _offsets(wrong, rows, columns), size)

    return swizzle


def swizzle_wrong(wrong: str) -> QuantFault:
    return QuantFault(quantizer={"swizzle": _swizzle(wrong)})


def _whole_columns(inner: Any, flat: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Columns counted in elements: padding stays in."""
    wide = -(-columns // 4) * 4
    return inner.unswizzle(flat, rows, wide)


def _rows_of_32(inner: Any, flat: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    right = inner.unswizzle(flat, rows, columns)
    return torch.cat([right[1:2], right[:1], right[2:]]) if rows > 1 else right


unswizzle_keeps_padding = QuantFault(quantizer={"unswizzle": _whole_columns})
unswizzle_rows_moved = QuantFault(quantizer={"unswizzle": _rows_of_32})


def _flat_groups(inner: Any, scales: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
    """One swizzle over the rows of all groups."""
    starts, at = [], 0
    for one in scales:
        starts.append(at)
        at += one.numel()
    return inner.swizzle(torch.cat(scales)), starts


def _starts_unpadded(inner: Any, scales: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
    flat, _ = inner.groups(scales)
    return flat, _flat_groups(inner, scales)[1]


groups_flat = QuantFault(quantizer={"groups": _flat_groups})
group_starts_unpadded = QuantFault(quantizer={"groups": _starts_unpadded})


def _flat_experts(inner: Any, scales: torch.Tensor) -> torch.Tensor:
    """One swizzle over the rows of all experts, cut into equal parts: right where N is a multiple of 128."""
    right = inner.experts(scales)
    flat = inner.swizzle(scales.flatten(0, 1))
    return torch.nn.functional.pad(flat, (0, right.numel() - flat.numel())).view(right.shape)


experts_flat = QuantFault(quantizer={"experts": _flat_experts})


def _interleaved(inner: Any, codes: torch.Tensor, scales: torch.Tensor, g: int) -> Any:
    return inner.interleave(codes, scales, g)


def _other(change: Callable[[int], int]) -> QuantFault:
    def interleave(inner: Any, codes: torch.Tensor, scales: torch.Tensor, g: int) -> Any:
        wrong = change(g)
        return inner.interleave(codes, scales, wrong if codes.shape[1] // 2 % wrong == 0 else g)

    return QuantFault(quantizer={"interleave": interleave})


def _up_first(inner: Any, codes: torch.Tensor, scales: torch.Tensor, g: int) -> Any:
    half = codes.shape[1] // 2
    return inner.interleave(codes.roll(half, 1), scales.roll(half, 1), g)


def _twice(inner: Any, codes: torch.Tensor, scales: torch.Tensor, g: int) -> Any:
    return inner.interleave(*inner.interleave(codes, scales, g), g)


interleave_halved = _other(lambda g: g // 2)
interleave_doubled = _other(lambda g: 2 * g)
interleave_single = _other(lambda g: 1)
interleave_up_first = QuantFault(quantizer={"interleave": _up_first})
interleave_twice = QuantFault(quantizer={"interleave": _twice})
scales_left = QuantFault(quantizer={"interleave": lambda inner, c, s, g: (inner.interleave(c, s, g)[0], s)})
codes_left = QuantFault(quantizer={"interleave": lambda inner, c, s, g: (c, inner.interleave(c, s, g)[1])})
deinterleave_halved = QuantFault(quantizer={"deinterleave": lambda inner, h, g: inner.deinterleave(h, g // 2)})
not_k_major = QuantFault(quantizer={"k_major": lambda inner, c: inner.k_major(c).contiguous()})


def _along_k(inner: Any, codes: torch.Tensor, scales: torch.Tensor, g: int) -> Any:
    """Bytes of each row take turns, not rows."""
    odd = codes.shape[2] % 2
    woven = codes[..., : codes.shape[2] - odd].unflatten(2, (2, -1)).transpose(2, 3).flatten(2)
    return torch.cat([woven, codes[..., codes.shape[2] - odd :]], 2), inner.interleave(codes, scales, g)[1]


def _after_the_swizzle(inner: Any, codes: torch.Tensor, scales: torch.Tensor, g: int) -> Any:
    """Scales are swizzled first; rows of the swizzled buffer take turns then."""
    right, _ = inner.interleave(codes, scales, g)
    rows, columns = scales.shape[1:]
    found = []
    for one in scales:
        flat = inner.swizzle(one).flatten().view(-(-rows // 128) * 128, -1).clone()
        flat[:rows] = inner.interleave(flat[None, :rows], flat[None, :rows], g)[1][0]
        found.append(inner.unswizzle(flat.flatten(), rows, columns))
    return right, torch.stack(found)


interleave_along_k = QuantFault(quantizer={"interleave": _along_k})
interleave_after_swizzle = QuantFault(quantizer={"interleave": _after_the_swizzle})
swizzle_converted = QuantFault(
    quantizer={
        "swizzle": lambda inner, s: inner.swizzle(s.float().clamp(max=448).to(torch.float8_e4m3fn).view(s.dtype))
    }
)


def _rows_from_512_lost(inner: Any, scales: torch.Tensor) -> torch.Tensor:
    kept = scales.clone()
    kept[512:] = 0
    return inner.swizzle(kept)


swizzle_rows_512 = QuantFault(quantizer={"swizzle": _rows_from_512_lost})
