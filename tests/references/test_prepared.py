"""The layout's recipe against places written out by hand, and against laws."""

from __future__ import annotations

import pytest
import torch

from references import prepared


@pytest.mark.parametrize(
    ("row", "group", "place"),
    [
        (0, 0, 0),
        (0, 3, 3),
        (1, 0, 16),
        (31, 3, 31 * 16 + 3),
        (32, 0, 4),
        (96, 0, 12),
        (127, 3, 511),
        (0, 4, 512),
        (128, 0, 2 * 512),
        (128, 7, 3 * 512 + 3),
    ],
)
def test_places_of_scales(row, group, place):
    """256 rows x 8 groups: four tiles, two across. Written out from cuBLAS' drawing of the layout."""
    assert prepared.offsets(256, 8)[row, group] == place


@pytest.mark.parametrize(("rows", "groups"), [(128, 4), (1536, 128), (4096, 24), (4096, 22), (100, 6), (1, 1)])
def test_interleaving_loses_nothing(rows, groups):
    scales = torch.randint(0, 256, (rows, groups), dtype=torch.uint8)
    flat = prepared.interleaved(scales)
    assert flat.numel() % 512 == 0
    assert torch.equal(prepared.plain(flat, rows, groups), scales)
    assert int(flat.long().sum()) == int(scales.long().sum()), "padding is zero"


def _share(rows: int, hidden: int) -> prepared.Share:
    def some(rows: int, cols: int) -> torch.Tensor:
        return torch.randint(1, 256, (rows, cols), dtype=torch.uint8)

    return prepared.Share(
        some(rows, hidden // 2),
        some(rows, hidden // 32),
        some(rows, hidden // 2),
        some(rows, hidden // 32),
        some(hidden, rows // 2),
        some(hidden, rows // 32),
    )


@pytest.mark.parametrize("rows", [96, 64])
def test_halves_are_padded_apart_up_first(rows):
    share = _share(rows, 256)
    made = prepared.prepare(share, 128, 256)
    assert torch.equal(made.w13[:rows], share.w3)
    assert torch.equal(made.w13[128 : 128 + rows], share.w1)
    assert not made.w13[rows:128].any()
    assert not made.w13[128 + rows :].any()
    scales = prepared.plain(made.w13_scale.flatten(), 256, 8)
    assert torch.equal(scales[:rows], share.w3_scale)
    assert torch.equal(scales[128 : 128 + rows], share.w1_scale)
    assert torch.equal(made.w2[:, : rows // 2], share.w2)
    assert not made.w2[:, rows // 2 :].any()


def test_a_share_that_is_too_wide():
    with pytest.raises(ValueError, match=r"\(160, 128\) bytes do not fit in \(128, 128\)"):
        prepared.prepare(_share(160, 256), 128, 256)
