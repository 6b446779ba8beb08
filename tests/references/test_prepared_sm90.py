"""SM90's layout against words written out by hand, and against laws."""

from __future__ import annotations

import pytest
import torch

from references import prepared_sm90
from references.prepared import Share


def _placed(row: int, byte: int, value: int) -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
    """One byte of 16 x 32 set: what else is not zero in memory, as (row, byte, value)."""
    weights = torch.zeros((16, 32), dtype=torch.uint8)
    weights[row, byte] = value
    made = prepared_sm90.interleaved(weights)
    return made, [(int(r), int(c), int(made[r, c])) for r, c in made.nonzero()]


@pytest.mark.parametrize(
    ("row", "byte", "value", "found"),
    [
        # The word at (0, 0) is of bytes (0, 0), (8, 0), (0, 4), (8, 4), codes s e e m.
        (0, 0, 0x08, [(0, 1, 0x80)]),  # sign of the low code: bit 15
        (0, 0, 0x07, [(0, 0, 0xC0), (0, 1, 0x01)]),  # its magnitude: bits 6 to 8
        (0, 0, 0x80, [(0, 3, 0x80)]),  # sign of the high code: bit 31
        (0, 0, 0x10, [(0, 2, 0x40)]),
        (8, 0, 0x08, [(0, 1, 0x10)]),
        (8, 0, 0x07, [(0, 0, 0x38)]),
        (0, 4, 0x08, [(0, 1, 0x02)]),
        (0, 4, 0x07, [(0, 0, 0x07)]),
        (8, 4, 0x01, [(0, 1, 0x20)]),  # the fourth code fills what is left: its mantissa at 13
        (8, 4, 0x06, [(0, 1, 0x0C)]),
        (8, 4, 0x08, [(0, 1, 0x40)]),
        # Columns 8 to 15 go to rows 8 below; 16 to 31 to the second half of a row.
        (0, 8, 0x08, [(8, 1, 0x80)]),
        (3, 1, 0x08, [(3, 5, 0x80)]),
        (3, 17, 0x08, [(3, 21, 0x80)]),
        (11, 31, 0x08, [(11, 29, 0x40)]),
    ],
)
def test_places_of_bits(row, byte, value, found):
    """Written out from FlashInfer's masks and shifts, one byte at a time."""
    assert _placed(row, byte, value)[1] == found


@pytest.mark.parametrize(("rows", "cols"), [(16, 32), (48, 96), (256, 384)])
def test_interleaving_is_a_bijection_on_bits(rows, cols):
    """Every bit set alone comes out as one bit, each elsewhere; and what is set together comes out together."""
    assert torch.equal(torch.sort(prepared_sm90.halves()).values, torch.arange(1 << 16, dtype=torch.int32))
    bits = 1 << torch.arange(16)
    lone = prepared_sm90.halves()[bits]
    assert sorted(lone.tolist()) == bits.tolist()
    codes = torch.randint(0, 1 << 16, (1000,))
    together = sum((codes >> b & 1) * lone[b] for b in range(16))
    assert torch.equal(prepared_sm90.halves()[codes].long(), together.long())
    places = prepared_sm90.sources(rows, cols).flatten()
    assert torch.equal(torch.sort(places).values, torch.arange(rows * cols))


@pytest.mark.parametrize(("rows", "cols"), [(16, 32), (1536, 256), (4096, 384)])
def test_read_back(rows, cols):
    weights = torch.randint(0, 256, (rows, cols), dtype=torch.uint8)
    made = prepared_sm90.interleaved(weights)
    assert not torch.equal(made, weights)
    assert torch.equal(prepared_sm90.weights(made.flatten(), rows, cols), weights)


@pytest.mark.parametrize(
    ("row", "group", "place"),
    [(0, 0, 0), (0, 3, 3), (1, 0, 16), (15, 3, 243), (16, 0, 4), (63, 3, 255), (0, 4, 256), (64, 0, 512), (64, 5, 769)],
)
def test_places_of_scales(row, group, place):
    """128 rows x 8 groups: four blocks, two across."""
    assert prepared_sm90.offsets(128, 8)[row, group] == place


@pytest.mark.parametrize(("rows", "groups"), [(64, 4), (1536, 128), (4096, 24)])
def test_folding_loses_nothing(rows, groups):
    scales = torch.randint(0, 256, (rows, groups), dtype=torch.uint8)
    made = prepared_sm90.folded(scales)
    assert made.shape == (rows // 64, groups // 4, 16, 16)
    assert torch.equal(prepared_sm90.plain(made.flatten(), rows, groups), scales)


def test_up_comes_first_and_each_half_is_padded():
    def some(rows: int, cols: int) -> torch.Tensor:
        return torch.randint(1, 256, (rows, cols), dtype=torch.uint8)

    share = Share(some(96, 128), some(96, 8), some(96, 128), some(96, 8), some(256, 48), some(256, 3))
    made = prepared_sm90.prepare(share, 128, 256)
    w13 = prepared_sm90.weights(made.w13.flatten(), 256, 128)
    assert torch.equal(w13[:96], share.w3)
    assert torch.equal(w13[128:224], share.w1)
    assert not w13[96:128].any()
    assert not w13[224:].any()
    scales = prepared_sm90.plain(made.w13_scale.flatten(), 256, 8)
    assert torch.equal(scales[128:224], share.w1_scale)
    w2 = prepared_sm90.weights(made.w2.flatten(), 256, 64)
    assert torch.equal(w2[:, :48], share.w2)
    assert not w2[:, 48:].any()


def test_what_makes_no_whole_blocks():
    with pytest.raises(ValueError, match="no whole blocks of 16 x 32"):
        prepared_sm90.interleaved(torch.zeros((24, 32), dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"\(4096, 22\) scales make no whole blocks of 64 x 4"):
        prepared_sm90.folded(torch.zeros((4096, 22), dtype=torch.uint8))
