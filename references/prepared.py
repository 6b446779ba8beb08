"""Weights and scales as the block-scaled CUTLASS MoE of SM100, SM103, SM120 and SM121 reads them (MXFP8 x MXFP4).

One expert of one rank, from its share of the checkpoint:

1. Gate (W1) and up (W3) are padded each on its own, up to the kernel's width; so are the columns of W2. Padding is
   zero bytes, in weights and scales alike.
2. W13 is [up; gate], weights and scales alike. Weights are not shuffled.
3. Scales lie in tiles of 128 rows x 4 groups, tiles row by row; in a tile, byte (row % 32) * 16 + row // 32 % 4 * 4
   + group % 4. Rows and groups are padded with zeros to whole tiles.
4. Two-element bytes are handed over as int64, scales as int32, in the same shape otherwise.

Source: NVIDIA cuBLAS, `1D block scaling factors layout`; FlashInfer 0.7.2, `block_scale_interleave` (host code);
vLLM 0.33.0, `oracle/mxfp4.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

TILE_ROWS, TILE_GROUPS = 128, 4
_TILE = TILE_ROWS * TILE_GROUPS
#: What the kernel is given: bytes of weights by eight, bytes of scales by four.
WEIGHT_VIEW, SCALE_VIEW = torch.int64, torch.int32


class Share(NamedTuple):
    """One expert of one rank as in the checkpoint, uint8: w1, w3 (n, H / 2), w2 (H, n / 2), scales per 32."""

    w1: torch.Tensor
    w1_scale: torch.Tensor
    w3: torch.Tensor
    w3_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor


class Prepared(NamedTuple):
    """One expert, uint8: w13 (2 K, H / 2), w2 (H, K / 2), scales by `scale_shape`, in memory order."""

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor


def prepare(share: Share, width: int, hidden: int) -> Prepared:
    """`width` K and `hidden` H are the kernel's, in elements. Raises ValueError where a share does not fit."""
    w13, w13_scale = (
        torch.cat([padded(up, width, columns), padded(gate, width, columns)])
        for gate, up, columns in (
            (share.w1, share.w3, hidden // 2),
            (share.w1_scale, share.w3_scale, hidden // 32),
        )
    )
    return Prepared(
        w13,
        interleaved(w13_scale).view(w13_scale.shape),
        padded(share.w2, hidden, width // 2),
        interleaved(padded(share.w2_scale, hidden, width // 32)).view(hidden, width // 32),
    )


def padded(x: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """x in the corner of zeros (rows, cols)."""
    if x.shape[0] > rows or x.shape[1] > cols:
        raise ValueError(f"{tuple(x.shape)} bytes do not fit in ({rows}, {cols})")
    whole = x.new_zeros((rows, cols))
    whole[: x.shape[0], : x.shape[1]] = x
    return whole


def offsets(rows: int, groups: int) -> torch.Tensor:
    """Where the scale of each (row, group) lies in memory: int64 (rows, groups)."""
    row, group = torch.arange(rows)[:, None], torch.arange(groups)
    tiles_across = -(-groups // TILE_GROUPS)
    tile = row // TILE_ROWS * tiles_across + group // TILE_GROUPS
    return tile * _TILE + row % 32 * 16 + row // 32 % 4 * 4 + group % TILE_GROUPS


def interleaved(scales: torch.Tensor) -> torch.Tensor:
    """(rows, groups) -> flat, whole tiles."""
    rows, groups = scales.shape
    flat = scales.new_zeros(-(-rows // TILE_ROWS) * -(-groups // TILE_GROUPS) * _TILE)
    flat[offsets(rows, groups)] = scales
    return flat


def weights(flat: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """What the kernel reads for each (row, byte): as they lie."""
    return flat.view(rows, cols)


def scale_shape(rows: int, groups: int) -> tuple[int, ...]:
    return rows, groups


def plain(flat: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    """The inverse: what lies where the kernel looks for the scale of each (row, group)."""
    return flat[offsets(rows, groups)]
