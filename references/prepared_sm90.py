"""Weights and scales as SM90's mixed-input CUTLASS MoE reads them (BF16 x MXFP4).

One expert of one rank, from its share of the checkpoint, padded and stacked to [up; gate] as `prepared.py` does it:

1. Weights, in blocks of 16 rows x 32 bytes. A word of four bytes holds rows r and r + 8 at bytes c and c + 4 of the
   source: byte i comes from row r + 8 (i % 2), byte c + 4 (i // 2). The word of (R, w), w in 0..7 of its block, has
   r = R % 8 and c = 16 (w // 4) + 8 (R // 8 % 2) + w % 4.
2. Bits of a word: the codes of the low nibbles share its low 16 bits, those of the high nibbles the upper 16, each set
   laid out alike. Three codes lie as a BF16 would hold them (sign at 15, the other three bits from 6 up), moved down by
   0, 3 and 6; the fourth fills the bits that are left.
3. Scales in blocks of 64 rows x 4 groups, 256 bytes, blocks row by row; in a block, byte row % 16 * 16
   + row // 16 % 4 * 4 + group % 4. Handed over as (rows / 64, groups / 4, 16, 16).

Source: FlashInfer 0.7.2, `interleave_fp4_weights_for_sm90_mixed_gemm` and `interleave_moe_scales_for_sm90_mixed_gemm`.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from references.prepared import Prepared, Share, padded

BLOCK_ROWS, BLOCK_BYTES = 16, 32
SCALE_ROWS, SCALE_GROUPS = 64, 4
#: What the kernel is given: bytes.
WEIGHT_VIEW, SCALE_VIEW = torch.uint8, torch.uint8
#: By byte of a word: where bits 0, 1, 2 and the sign of its code lie, in the half that its nibble goes to.
_PLACES = ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (13, 10, 11, 14))


def prepare(share: Share, width: int, hidden: int) -> Prepared:
    """`width` K and `hidden` H are the kernel's, in elements. Raises ValueError where a share does not fit."""
    w13 = torch.cat([padded(w, width, hidden // 2) for w in (share.w3, share.w1)])
    w13_scale = torch.cat([padded(scale, width, hidden // 32) for scale in (share.w3_scale, share.w1_scale)])
    return Prepared(
        interleaved(w13),
        folded(w13_scale),
        interleaved(padded(share.w2, hidden, width // 2)),
        folded(padded(share.w2_scale, hidden, width // 32)),
    )


@lru_cache(maxsize=4)
def sources(rows: int, cols: int) -> torch.Tensor:
    """Which byte of (rows, cols), row by row, each byte of memory is made of, before bits move: int64 (rows, cols)."""
    if rows % BLOCK_ROWS or cols % BLOCK_BYTES:
        raise ValueError(f"({rows}, {cols}) bytes of weights make no whole blocks of {BLOCK_ROWS} x {BLOCK_BYTES}")
    row, byte = torch.arange(rows)[:, None], torch.arange(cols)
    word, i = byte % BLOCK_BYTES // 4, byte % 4
    of_row = row // BLOCK_ROWS * BLOCK_ROWS + row % 8 + i % 2 * 8
    of_byte = byte // BLOCK_BYTES * BLOCK_BYTES + word // 4 * 16 + row // 8 % 2 * 8 + word % 4 + i // 2 * 4
    return of_row * cols + of_byte


@lru_cache(maxsize=1)
def halves() -> torch.Tensor:
    """Half a word by the codes of its four bytes (byte i's at bits 4 i): int32 (65536,), a permutation."""
    codes = torch.arange(1 << 16, dtype=torch.int32)
    half = torch.zeros_like(codes)
    for byte, places in enumerate(_PLACES):
        for bit, place in enumerate(places):
            half |= (codes >> 4 * byte + bit & 1) << place
    return half


@lru_cache(maxsize=1)
def _codes() -> torch.Tensor:
    """The inverse of `halves`, each code in the low nibble of its byte: int32 (65536,)."""
    codes = torch.argsort(halves())
    return torch.stack([codes >> 4 * byte & 15 for byte in range(4)], dim=1).to(torch.uint8).view(torch.int32).view(-1)


def moved(words: torch.Tensor) -> torch.Tensor:
    """Words of four bytes, int32 (first byte lowest), to words of permuted bits."""
    low, high = (halves().index_select(0, _low_nibbles(four)) for four in (words, words >> 4))
    return low | high << 16


def _low_nibbles(words: torch.Tensor) -> torch.Tensor:
    """Those of the four bytes, side by side."""
    found = words & 15
    for byte in (1, 2, 3):
        found |= words >> 4 * byte & 15 << 4 * byte
    return found


def moved_back(words: torch.Tensor) -> torch.Tensor:
    """The inverse of `moved`."""
    low, high = (_codes().index_select(0, half & 0xFFFF) for half in (words, words >> 16))
    return low | high << 4


def interleaved(weights: torch.Tensor) -> torch.Tensor:
    """(rows, bytes) uint8 -> the same shape, in memory order. Raises ValueError where they make no whole blocks."""
    four = weights.flatten().index_select(0, sources(*weights.shape).flatten())
    return moved(four.view(torch.int32)).view(torch.uint8).view(weights.shape)


def weights(flat: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse: what the kernel reads for each (row, byte)."""
    plain = flat.new_empty(rows * cols)
    plain[sources(rows, cols).flatten()] = moved_back(flat.contiguous().view(torch.int32)).view(torch.uint8)
    return plain.view(rows, cols)


def offsets(rows: int, groups: int) -> torch.Tensor:
    """Where the scale of each (row, group) lies in memory: int64 (rows, groups)."""
    row, group = torch.arange(rows)[:, None], torch.arange(groups)
    block = row // SCALE_ROWS * (groups // SCALE_GROUPS) + group // SCALE_GROUPS
    return block * SCALE_ROWS * SCALE_GROUPS + row % 16 * 16 + row // 16 % 4 * 4 + group % SCALE_GROUPS


def scale_shape(rows: int, groups: int) -> tuple[int, ...]:
    """Raises ValueError where rows and groups make no whole blocks."""
    if rows % SCALE_ROWS or groups % SCALE_GROUPS:
        raise ValueError(f"({rows}, {groups}) scales make no whole blocks of {SCALE_ROWS} x {SCALE_GROUPS}")
    return rows // SCALE_ROWS, groups // SCALE_GROUPS, 16, 16


def folded(scales: torch.Tensor) -> torch.Tensor:
    """(rows, groups) -> blocks. Raises ValueError as `scale_shape` does."""
    blocks = scales.new_empty(scale_shape(*scales.shape))
    blocks.view(-1)[offsets(*scales.shape)] = scales
    return blocks


def plain(flat: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    """The inverse: what lies where the kernel looks for the scale of each (row, group)."""
    return flat[offsets(rows, groups)]
