"""The reference stack's attention: a profile's padding and roundings emulated on any torch device, slowly and openly.

Independent of `references/`: FP32, keys in tiles with a running maximum, powers of two for exponentials, as kernels do.
Pad heads are computed like all others.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch

from conformance.errors import StackRefused
from conformance.geometry import Geometry
from conformance.stacks import reference_cache, reference_rope
from conformance.stacks import reference_numerics as numerics
from conformance.stacks.attention_protocol import (
    AttendCall,
    AttentionCapabilities,
    CompressorRequest,
    OutputRequest,
    Pages,
    SelectCall,
    Sparse,
    StepCall,
)
from conformance.stacks.reference_compressor import ReferenceCompressor
from conformance.stacks.reference_output import ReferenceOutput

_TILE = 64


class Keys(NamedTuple):
    """What queries see of one cache: values (T, K, 512) float32, and which of them count (T, K)."""

    values: torch.Tensor
    valid: torch.Tensor


class ReferenceAttention:
    def __init__(self, heads: tuple[int, ...], scales: str, device: str = "cpu"):
        self._heads: tuple[int, ...] = heads
        self._scales: Any = scales
        self._device = device

    def capabilities(self) -> AttentionCapabilities:
        projection: Literal["bfloat16", "e4m3"] = "e4m3" if self._scales else "bfloat16"
        return AttentionCapabilities(
            parts=("table", "queries", "insert", "attend", "step", "compressor", "select", "output"),
            phases=("decode", "prefill"),
            heads=self._heads,
            projection=projection,
            scales=self._scales,
            aligned_slots=_TILE,
            ties="lowest",
            device=self._device,
            device_words=f"{self._device}, emulated in FP32",
        )

    def padded(self, heads: int) -> int:
        taken = [count for count in self._heads or (heads,) if count >= heads]
        if not taken:
            raise StackRefused(f"{heads} heads were asked for; the kernel takes {', '.join(map(str, self._heads))}")
        return taken[0]

    def table(self, geometry: Geometry, ratio: int, positions: int) -> torch.Tensor:
        return reference_rope.table(geometry.config, ratio, positions).to(self._device)

    def queries(self, q: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, eps: float) -> torch.Tensor:
        wide = q.float()
        normalised = wide / (wide.pow(2).sum(2, keepdim=True) / q.shape[2] + eps).sqrt()
        turned = reference_rope.rotate(normalised, positions, table)
        more = self.padded(q.shape[1]) - q.shape[1]
        return numerics.to_bf16(torch.nn.functional.pad(turned, (0, 0, 0, more))).bfloat16()

    def insert(
        self, kv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, pages: Pages, slots: torch.Tensor
    ) -> None:
        reference_cache.store(pages, slots, reference_rope.rotate(kv.float(), positions, table))

    def attend(self, call: AttendCall, out: torch.Tensor) -> None:
        self._check(call.q)
        found = [_keys(part) for part in (call.window, call.compressed) if part is not None]
        keys = Keys(torch.cat([k.values for k in found], 1), torch.cat([k.valid for k in found], 1))
        out.copy_(core(call.q, keys, call.sinks, call.scale))

    def step(self, call: StepCall, out: torch.Tensor) -> None:
        parts = [visible(call.positions, call.requests, call.window, call.window_table, call.window_pages)]
        if call.compressed_pages is not None and call.compressed_table is not None:
            parts.append(_entries(call, call.compressed_pages, call.compressed_table))
        self.attend(AttendCall("decode", call.q, call.sinks, call.scale, *parts, *[None][: 2 - len(parts)]), out)

    def compressor(self, request: CompressorRequest) -> ReferenceCompressor:
        return ReferenceCompressor(request)

    def select(self, call: SelectCall) -> torch.Tensor:
        products = torch.einsum("thd,ted->the", call.q.float(), call.keys.float()[call.requests.long()])
        scores = torch.einsum("the,th->te", products.clamp(min=0), call.weights)
        last = torch.arange(4, 4 * scores.shape[1] + 4, 4, device=scores.device) - 1  # an entry's last token
        scores = torch.where(last <= call.positions[:, None], scores, -torch.inf)
        best = scores.sort(dim=1, descending=True, stable=True)
        chosen = torch.where(best.values > -torch.inf, best.indices, -1)[:, : call.k]
        return torch.nn.functional.pad(chosen, (0, call.k - chosen.shape[1]), value=-1).int()

    def output(self, request: OutputRequest) -> ReferenceOutput:
        return ReferenceOutput(request, self.padded(request.heads), bool(self._scales))

    def _check(self, q: torch.Tensor) -> None:
        if self._heads and q.shape[1] not in self._heads:
            raise StackRefused(f"q has {q.shape[1]} heads; the kernel takes {', '.join(map(str, self._heads))}")


def _keys(part: Sparse) -> Keys:
    """Slots that do not count are read from nowhere: their values are zero, whatever memory holds."""
    place = torch.arange(part.slots.shape[1], device=part.slots.device)
    valid = (part.slots >= 0) & (place < part.lengths[:, None])
    values = reference_cache.fetch(part.pages, torch.where(valid, part.slots, 0))
    return Keys(values.masked_fill_(~valid[..., None], 0.0), valid)


def core(q: torch.Tensor, keys: Keys, sinks: torch.Tensor, scale: float) -> torch.Tensor:
    """q (T, P, 512) bfloat16 -> (T, P, 512) bfloat16, tile by tile; the sink joins at the end."""
    q, turn = q.float(), scale * math.log2(math.e)
    top = q.new_full(q.shape[:2], -torch.inf)
    mass, gathered = torch.zeros_like(top), torch.zeros_like(q)
    for values, valid in zip(keys.values.split(_TILE, 1), keys.valid.split(_TILE, 1), strict=True):
        scores = torch.where(valid[:, None], (q @ values.mT) * turn, -torch.inf)
        higher = torch.maximum(top, scores.amax(2))
        base = torch.where(higher.isinf(), 0.0, higher)
        shrink = torch.exp2(top - base)
        numerators = torch.exp2(scores - base[..., None])
        mass = mass * shrink + numerators.sum(2)
        gathered = gathered * shrink[..., None] + numerics.to_bf16(numerators) @ values
        top = higher
    mass = mass + torch.exp2(sinks.float() * math.log2(math.e) - torch.where(top.isinf(), 0.0, top))
    out = torch.where((mass == 0)[..., None], 0.0, gathered / mass[..., None])
    return numerics.to_bf16(out).bfloat16()


def visible(positions: torch.Tensor, requests: torch.Tensor, window: int, table: torch.Tensor, pages: Pages) -> Sparse:
    """The window, newest token first."""
    back = positions[:, None] - torch.arange(window, device=positions.device)
    return _mapped(back, back >= 0, requests, table, pages)


def _entries(call: StepCall, pages: Pages, table: torch.Tensor) -> Sparse:
    if call.selected is not None:
        return _mapped(call.selected.long(), call.selected >= 0, call.requests, table, pages)
    most = int(call.lengths.max()) // call.ratio if len(call.lengths) else 0
    number = torch.arange(max(most, 1), device=call.positions.device).expand(len(call.positions), -1)
    return _mapped(number, (number + 1) * call.ratio - 1 <= call.positions[:, None], call.requests, table, pages)


def _mapped(
    numbers: torch.Tensor, valid: torch.Tensor, requests: torch.Tensor, table: torch.Tensor, pages: Pages
) -> Sparse:
    of_request = table[requests.long()].long()
    inside = torch.where(valid, numbers, 0)
    slots = of_request.gather(1, inside // pages.tokens) * pages.tokens + inside % pages.tokens
    lengths = torch.full((len(numbers),), numbers.shape[1], dtype=torch.int32, device=numbers.device)
    return Sparse(pages, torch.where(valid, slots, -1), lengths)
