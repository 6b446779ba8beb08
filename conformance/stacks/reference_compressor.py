"""The reference stack's own compressor: tokens are kept until an entry is complete, one request at a time."""

from __future__ import annotations

import torch

from conformance.stacks import reference_cache, reference_rope
from conformance.stacks.attention_protocol import CompressorRequest, Pages


class ReferenceCompressor:
    """Keeps the tokens that are still needed: `ratio` of them, twice as many where entries overlap."""

    def __init__(self, request: CompressorRequest):
        self._request = request
        self._kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def run(
        self,
        kv: torch.Tensor,
        gate: torch.Tensor,
        positions: torch.Tensor,
        requests: torch.Tensor,
        pages: Pages,
        slots: torch.Tensor,
    ) -> None:
        r, done, at, where = self._request, [], [], []
        for token, (position, request, slot) in enumerate(
            zip(positions.tolist(), requests.tolist(), slots.tolist(), strict=True)
        ):
            kept = self._state(request, position)
            kept.append((kv[token], gate[token] + r.bias[position % r.ratio]))
            if position % r.ratio == r.ratio - 1:
                done.append(self._entry(kept))
                at.append(position + 1 - r.ratio)
                where.append(slot)
                del kept[: -r.ratio if r.ratio == 4 else None]
        if done:
            place = torch.tensor(at, device=kv.device)
            entries = torch.stack(done)
            rms = (entries.square().sum(1, keepdim=True) / entries.shape[1] + r.eps).sqrt()
            turned = reference_rope.rotate(entries / rms * r.norm, place, r.table)
            reference_cache.store(pages, torch.tensor(where, device=kv.device), turned)

    def _state(self, request: int, position: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What is kept of a request; of one that begins, nothing."""
        if position == 0:
            self._kept.pop(request, None)
        return self._kept.setdefault(request, [])

    def _entry(self, kept: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """(512,) float32: of an overlapping entry earlier tokens bring their first channels, later ones their last."""
        half = self._request.ratio
        if half != 4:
            chosen = kept
        else:
            width = kept[0][0].shape[0] // 2
            early = [(k[:width], g[:width]) for k, g in kept[:-half]]
            chosen = early + [(k[width:], g[width:]) for k, g in kept[-half:]]
        values, gates = (torch.stack(part) for part in zip(*chosen, strict=True))
        weights = torch.exp(gates - gates.amax(0))
        return (values * weights).sum(0) / weights.sum(0)

    def close(self) -> None:
        self._kept.clear()
