"""The due maps against brute force: number every checkpoint byte, slice the numbers by hand, compare each byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import expected
from conformance.geometry import Geometry
from conformance.provenance.boxes import State
from conformance.stacks.protocols import SHARDS, ParameterInfo
from tests.provenance.cells import ZERO, number, paint

UNITS = {"w13_weight": 1, "w13_weight_scale": 1, "w2_weight": 2, "w2_weight_scale": 32}


def geometry(intermediate: int, hidden: int, experts: int) -> Geometry:
    return Geometry(
        name="small",
        model_type="",
        hidden_size=hidden,
        attention_heads=8,
        kv_heads=1,
        head_dim=8,
        intermediate=intermediate,
        experts=experts,
        top_k=1,
        vocab=64,
        layers=1,
    )


def built(parameter: str, width: int, hidden: int) -> ParameterInfo:
    """The parameter's shape for a kernel of `width` channels and `hidden` elements."""
    over = 32 if parameter.endswith("scale") else 2
    if parameter.startswith("w13"):
        return ParameterInfo(2 * width, hidden // over, "uint8")
    return ParameterInfo(hidden, width // over, "uint8")


def brute_force(g: Geometry, per_rank: int, rank: int, parameter: str, info: ParameterInfo) -> np.ndarray:
    """Each destination byte's number, by slicing numbered checkpoint tensors."""
    over = 32 if parameter.endswith("scale") else 2
    cells = np.full((g.experts, info.rows, info.cols), ZERO, dtype=np.int64)
    for expert in range(g.experts):
        for index in range(len(SHARDS[parameter])):
            if parameter.startswith("w13"):
                checkpoint = number(index, expert, np.arange(g.intermediate)[:, None], np.arange(g.hidden_size // over))
                piece = checkpoint[rank * per_rank : (rank + 1) * per_rank]
                half = cells[expert, index * info.rows // 2 : (index + 1) * info.rows // 2]
            else:
                checkpoint = number(index, expert, np.arange(g.hidden_size)[:, None], np.arange(g.intermediate // over))
                piece = checkpoint[:, rank * per_rank // over : (rank + 1) * per_rank // over]
                half = cells[expert]
            half[: piece.shape[0], : piece.shape[1]] = piece
    return cells


@given(
    intermediate=st.integers(1, 8).map(lambda n: 32 * n),
    hidden=st.integers(1, 3).map(lambda n: 32 * n),
    experts=st.integers(1, 3),
    tp=st.integers(1, 6),
    data=st.data(),
)
def test_every_byte_of_the_due_map(intermediate, hidden, experts, tp, data):
    g = geometry(intermediate, hidden, experts)
    per_rank = next(n for n in range(32, 8 * 32 + 1, 32) if n * tp >= intermediate)
    width = per_rank + 32 * data.draw(st.integers(0, 3), label="kernel rounding / 32")
    padded_hidden = hidden + 32 * data.draw(st.integers(0, 2), label="hidden rounding / 32")
    rank = data.draw(st.integers(0, tp - 1), label="rank")
    parameter = data.draw(st.sampled_from(list(SHARDS)), label="parameter")
    info = built(parameter, width, padded_hidden)
    due = expected.experts_map(g, tp, rank, parameter, info, experts)
    np.testing.assert_array_equal(paint(due, SHARDS[parameter]), brute_force(g, per_rank, rank, parameter, info))
    assert {box.state for box in due.boxes} <= {State.SOURCE, State.ZERO}
    assert due.boxes == sorted(due.boxes, key=lambda b: (b.experts, b.rows, b.cols))


@given(intermediate=st.integers(1, 8).map(lambda n: 32 * n), tp=st.integers(1, 6), width=st.sampled_from([32, 128]))
def test_ranks_together_own_every_checkpoint_byte_once(intermediate, tp, width):
    g = geometry(intermediate, 32, 2)
    per_rank = next(n for n in range(32, 8 * 32 + 1, 32) if n * tp >= intermediate)
    kernel = -(-per_rank // width) * width
    for parameter, shards in SHARDS.items():
        owned: list[int] = []
        for rank in range(tp):
            info = built(parameter, kernel, 32)
            cells = paint(expected.experts_map(g, tp, rank, parameter, info, 2), shards)
            owned += cells[cells >= 0].tolist()
        rows, cols = (intermediate, 32) if parameter.startswith("w13") else (32, intermediate)
        every = len(shards) * 2 * rows * (cols // (32 if parameter.endswith("scale") else 2))
        assert len(owned) == len(set(owned)) == every


@pytest.mark.parametrize(
    ("parameter", "info", "words"),
    [
        ("w2_weight", ParameterInfo(32, 40, "uint8"), "96 elements a rank do not fit a kernel width of 80"),
        ("w2_weight", ParameterInfo(16, 48, "uint8"), "w2_weight holds 16 rows; the checkpoint's 32 do not fit"),
        ("w13_weight", ParameterInfo(180, 16, "uint8"), "96 elements a rank do not fit a kernel width of 90"),
        ("w13_weight", ParameterInfo(192, 15, "uint8"), "holds 15 bytes a row; the checkpoint's 16 do not fit"),
        ("w2_weight_scale", ParameterInfo(32, 2, "uint8"), "96 elements a rank do not fit a kernel width of 64"),
    ],
)
def test_parameters_that_cannot_hold_what_is_due(parameter, info, words):
    with pytest.raises(ValueError, match=words):
        expected.experts_map(geometry(256, 32, 1), 3, 0, parameter, info, 1)


@pytest.mark.parametrize(
    ("parameter", "width", "info"),
    [
        ("w13_weight", 768, ParameterInfo(1536, 2048, "uint8")),
        ("w13_weight_scale", 768, ParameterInfo(1536, 128, "uint8")),
        ("w2_weight", 768, ParameterInfo(4096, 384, "uint8")),
        ("w2_weight_scale", 768, ParameterInfo(4096, 24, "uint8")),
    ],
)
def test_kernel_width_is_read_off_the_shape(parameter, width, info):
    assert expected.kernel_width(parameter, info) == width
    assert expected.unit(parameter) == UNITS[parameter]
