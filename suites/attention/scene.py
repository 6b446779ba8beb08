"""Requests in a paged cache: who asks, what is stored, and what lies beside it.

Pages are dealt out at random, one trap page with none of anybody's tokens ends the table rows that are not full, and
every place that no request uses holds stale tokens (or zeros, or NaN): what shows in an output did not belong there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import torch

from conformance.stacks.attention_protocol import AttentionCapabilities, Pages, Sparse
from references import attention_cache, attention_seen

Fill = Literal["stale", "zero", "nan"]

WINDOW = 128
#: Requests of one query each: (tokens, queries). Around the window, a page, and C4's and C128's entries; the longest
#: has 512 selected entries of C4, 66 of C128.
DECODE = ((1, 1), (2, 1), (64, 1), (65, 1), (127, 1), (128, 1), (129, 1), (257, 1), (8450, 1), (640, 1))
#: Chunks of odd sizes: a first one, one that ends on the window's edge, and two far on.
PREFILL = ((9, 9), (131, 5), (8450, 2), (300, 5))
#: What tokens have in their last channel, those of the first half of a long request negative: a query that is long
#: there has scores whose exponentials overflow, and no less so once the maximum of the first keys is taken away.
COMMON = 4.0
#: Slots of a cache in which tokens are dealt out anew, past 2^15.
_SLOTS = 40_000
#: Most that the indexer selects. Source: DeepSeek-V4-Flash's `index_topk`.
_SELECTED = 512


class Paged(NamedTuple):
    pages: Pages
    table: torch.Tensor  # (B, pages of the longest request) int32


class Scene(NamedTuple):
    """positions (T,) int64 and requests (T,) int32 of the queries; lengths (B,) int32.

    `selected` (T, k) int32: what the indexer chose, for ratio 4; k a multiple of 64, 512 at most.
    """

    ratio: int
    positions: torch.Tensor
    requests: torch.Tensor
    lengths: torch.Tensor
    window: Paged
    compressed: Paged | None
    selected: torch.Tensor | None
    fp8: bool

    def window_numbers(self, size: int = WINDOW) -> torch.Tensor:
        return attention_seen.window(self.positions, size)

    def compressed_numbers(self) -> torch.Tensor:
        """(T, K) int64: the entries that each query sees."""
        if self.selected is not None:
            return self.selected.long()
        return attention_seen.entries(self.positions, self.ratio, max(1, int(self.lengths.max()) // self.ratio))

    def slots(self) -> list[tuple[Pages, torch.Tensor]]:
        """(pages, slots (T, K)) of the window and, with compression, of the entries."""
        found = [(self.window, self.window_numbers())]
        if self.compressed is not None:
            found.append((self.compressed, self.compressed_numbers()))
        return [(p.pages, attention_seen.slots(n, self.requests, p.table, p.pages.tokens)) for p, n in found]

    def sparse(self, can: AttentionCapabilities) -> tuple[Sparse, Sparse | None]:
        """What a kernel is given, up to a multiple of `aligned_slots`: slots that count, in every other row with a -1
        in front of them if there is room, and stale slots behind a row's length."""
        made = []
        for pages, slots in self.slots():
            more = -slots.shape[1] % can.aligned_slots
            wide, valid = torch.nn.functional.pad(slots, (0, more), value=-1), (slots >= 0).sum(1)
            row, column = torch.arange(len(wide), device=wide.device), torch.arange(wide.shape[1], device=wide.device)
            front = (row % 2 == 1) & (valid < wide.shape[1])
            lengths = valid + front
            stale = (1 + 7 * row[:, None] + 11 * column) % (len(pages.data) * pages.tokens)
            wide = torch.where(front[:, None], wide.roll(1, 1), wide)
            wide = torch.where(column < lengths[:, None], wide, stale).to(getattr(torch, can.slots))
            made.append(Sparse(pages, wide.contiguous(), lengths.int()))
        return made[0], made[1] if len(made) > 1 else None

    def seen(self, tokens: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """For the reference: values (t, K, 512) FP64, and which of them are seen."""
        values, valid = [], []
        for pages, slots in self.slots():
            values.append(attention_cache.read(pages.data, slots[tokens], pages.tokens, self.fp8))
            valid.append(slots[tokens] >= 0)
        return torch.cat(values, 1), torch.cat(valid, 1)

    def only(self, some: torch.Tensor) -> Scene:
        """The same caches with those queries alone."""
        selected = self.selected[some] if self.selected is not None else None
        return self._replace(positions=self.positions[some], requests=self.requests[some], selected=selected)

    @property
    def keys(self) -> int:
        return sum(slots.shape[1] for _, slots in self.slots())


def scene(
    can: AttentionCapabilities,
    seed: int,
    ratio: int,
    asked: tuple[tuple[int, int], ...],
    fill: Fill = "stale",
    deal: int = 0,
) -> Scene:
    """`deal`: another number deals the same tokens to other pages, of a cache of 40,000 slots. Made once, but for that;
    the pages are the caller's own."""
    one = (_scene.__wrapped__ if deal else _scene)(can, seed, ratio, asked, fill, deal)
    return one._replace(window=_copied(one.window), compressed=_copied(one.compressed) if one.compressed else None)


def _copied(paged: Paged) -> Paged:
    return Paged(Pages(paged.pages.data.clone(), paged.pages.tokens), paged.table)


@lru_cache(maxsize=64)
def _scene(
    can: AttentionCapabilities, seed: int, ratio: int, asked: tuple[tuple[int, int], ...], fill: Fill, deal: int
) -> Scene:
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([length for length, _ in asked], dtype=torch.int32)
    positions = torch.cat([torch.arange(length - count, length) for length, count in asked])
    requests = torch.cat([torch.full((count,), b, dtype=torch.int32) for b, (_, count) in enumerate(asked)])
    fp8 = can.kv == "fp8_ds_mla"
    seen = [_Seen(_tokens(length - first_kept(length, count), rng), length) for length, count in asked]
    window = _paged(seen, can.window_tokens, fill, seed + deal, fp8, deal > 0)
    compressed = selected = None
    if ratio:
        entries = [_Seen(_tokens(n // ratio, rng), n // ratio) for n in lengths.tolist()]
        compressed = _paged(
            entries, can.c4_tokens if ratio == 4 else can.c128_tokens, fill, seed + deal + 1, fp8, deal > 0
        )
    if ratio == 4:
        selected = _selection(positions, rng)
    return Scene(
        ratio,
        positions.to(can.device),
        requests.to(can.device),
        lengths.to(can.device),
        _on(window, can.device),
        _on(compressed, can.device) if compressed else None,
        selected.to(can.device) if selected is not None else None,
        fp8,
    )


def _on(paged: Paged, device: str) -> Paged:
    return Paged(Pages(paged.pages.data.to(device), paged.pages.tokens), paged.table.to(device))


def _tokens(count: int, rng: torch.Generator) -> torch.Tensor:
    """(count, 512) float32 of all magnitudes: the 64-channel blocks of a token differ by powers of two."""
    values = torch.randn(count, 512, generator=rng)
    power = torch.randint(-2, 2, (count, 8), generator=rng).repeat_interleave(64, 1)
    values = torch.ldexp(values, power)
    values[:, -1] = COMMON
    if count > WINDOW:
        values[: count // 2 + 8, -1] = -COMMON
    return values


def first_kept(length: int, count: int) -> int:
    """Of a request's tokens the first that is in the window's cache, if its last `count` are queries."""
    return max(0, length - count - WINDOW)


class _Seen(NamedTuple):
    """The last tokens of a request (n, 512), and its length: those before are seen by no query."""

    values: torch.Tensor
    length: int


def _paged(requests: list[_Seen], tokens: int, fill: Fill, seed: int, fp8: bool, wide: bool) -> Paged:
    """Every request's tokens in pages of its own, the last page of all being nobody's. Pages in front of what is seen
    are gone, as a window's are. `wide`: among so many pages that slots are past 2^15."""
    rng = torch.Generator().manual_seed(seed)
    starts = [(one.length - len(one.values)) // tokens for one in requests]
    ends = [-(-one.length // tokens) for one in requests]
    needed = sum(ends) - sum(starts) + 1
    total = max(needed, _SLOTS // tokens) if wide else needed
    data = _filled(needed, tokens, fill, rng, fp8)
    data = data.repeat(-(-total // needed), 1)[:total]
    order = torch.randperm(total - 1, generator=rng).int()
    table = torch.full((len(requests), max(1, *ends)), total - 1, dtype=torch.int32)
    at = 0
    for b, (start, end, one) in enumerate(zip(starts, ends, requests, strict=True)):
        table[b, start:end] = order[at : at + end - start]
        at += end - start
        number = torch.arange(one.length - len(one.values), one.length)
        slots = table[b].long()[number // tokens] * tokens + number % tokens
        attention_cache.put(data, slots, tokens, one.values, fp8)
    return Paged(Pages(data, tokens), table)


def _filled(total: int, tokens: int, fill: Fill, rng: torch.Generator, fp8: bool) -> torch.Tensor:
    width = attention_cache.page_bytes(tokens, fp8)
    if fill != "stale":
        return torch.full((total, width), 0xFF if fill == "nan" else 0, dtype=torch.uint8)
    data = torch.full((total, width), 0x4B, dtype=torch.uint8)
    stale = 20 * torch.randn(total * tokens, 512, generator=rng)
    attention_cache.put(data, torch.arange(total * tokens), tokens, stale, fp8)
    return data


def _selection(positions: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """(T, k) int32: some of the entries that each position sees, ascending, then -1."""
    most = min((int(positions.max()) + 1) // 4, _SELECTED) if len(positions) else 0
    chosen = torch.full((len(positions), max(64, -(-most // 64) * 64)), -1, dtype=torch.int32)
    for row, position in enumerate(positions.tolist()):
        some = torch.randperm((position + 1) // 4, generator=rng)[:_SELECTED].sort().values
        chosen[row, : len(some)] = some.int()
    return chosen
