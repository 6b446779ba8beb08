"""A checkpoint made of nothing: any byte of it, from its own coordinates, alike on CPU and GPU.

Byte (seed, tensor, expert, row, col) is one byte of a 64-bit hash of (seed, tensor, expert, row, col // 8): splitmix64,
whose products wrap alike everywhere in int64. So weights never travel: whoever needs a block makes it.
"""

from __future__ import annotations

import torch

_WORD = 8
_RANGE = 1 << 64


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right: int64 shifts copy the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def hashed(z: torch.Tensor) -> torch.Tensor:
    """splitmix64's output function of each int64."""
    z = z + _GOLDEN
    z = (z ^ _shifted(z, 30)) * _MIX1
    z = (z ^ _shifted(z, 27)) * _MIX2
    return z ^ _shifted(z, 31)


def key(seed: int, tensor: int, expert: int) -> int:
    """What all bytes of one tensor of one expert share: the same hash, in Python's integers."""
    found = seed
    for part in (tensor, expert):
        z = (found + part + 0x9E3779B97F4A7C15) % _RANGE
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % _RANGE
        z = (z ^ z >> 27) * 0x94D049BB133111EB % _RANGE
        found = z ^ z >> 31
    return _signed(found)


def blocks(
    seed: int,
    tensor: int,
    experts: tuple[int, int],
    rows: tuple[int, int],
    cols: tuple[int, int],
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Bytes [rows[0], rows[1]) x [cols[0], cols[1]) of one tensor of experts [experts[0], experts[1]):
    uint8 (experts, rows, cols)."""
    keys = torch.tensor([key(seed, tensor, expert) for expert in range(*experts)], dtype=torch.int64).to(device)
    first, last = cols[0] // _WORD, -(-cols[1] // _WORD)
    row = hashed(keys[:, None] + torch.arange(*rows, device=device))
    words = hashed(row[:, :, None] + torch.arange(first, last, device=device))
    skipped = cols[0] - first * _WORD
    return words.view(torch.uint8)[..., skipped : skipped + cols[1] - cols[0]]


def block(
    seed: int,
    tensor: int,
    expert: int,
    rows: tuple[int, int],
    cols: tuple[int, int],
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """The same of one expert: uint8 (rows, cols)."""
    return blocks(seed, tensor, (expert, expert + 1), rows, cols, device)[0]
