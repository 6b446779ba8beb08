"""Where block scales lie in memory for block-scaled MMAs: tiles of 128 rows x 4 blocks of 512 bytes, blocks fastest.

    off(r, c) = (r // 128 * ceil(C / 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4

Bytes of no row and no block are 0. Activations: each group is padded to whole tiles on its own, and groups follow
each other. Weights: so does each expert. Source: NVIDIA cuBLAS, `1D block scaling factors layout`; CuTe's atom ((32,
4), (sf, 4)) : ((16, 4), (0, 1)), tiled with K tiles fastest.
"""

from __future__ import annotations

import torch

ROWS, BLOCKS, TILE = 128, 4, 512


def size(rows: int, columns: int) -> int:
    """Bytes of the whole tiles that hold (rows, columns)."""
    return -(-rows // ROWS) * -(-columns // BLOCKS) * TILE


def offset(row: torch.Tensor, column: torch.Tensor, columns: int) -> torch.Tensor:
    """int64, of broadcastable rows and columns of a matrix so many columns wide."""
    row, column = row.long(), column.long()
    tile = row // ROWS * -(-columns // BLOCKS) + column // BLOCKS
    return tile * TILE + row % 32 * 16 + row % ROWS // 32 * 4 + column % BLOCKS


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """(R, C) -> flat."""
    rows, columns = scales.shape
    flat = scales.new_zeros(size(rows, columns))
    flat[offset(torch.arange(rows)[:, None], torch.arange(columns), columns)] = scales
    return flat


def plain(flat: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The inverse."""
    return flat[offset(torch.arange(rows)[:, None], torch.arange(columns), columns)]


def grouped(scales: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
    """Groups of (m_i, C) -> flat, and where each begins."""
    starts = [0]
    for one in scales:
        starts.append(starts[-1] + size(*one.shape))
    return torch.cat([swizzled(one) for one in scales]), starts[:-1]


def by_expert(scales: torch.Tensor) -> torch.Tensor:
    """(E, N, C) -> (E, bytes)."""
    return torch.stack([swizzled(one) for one in scales])
