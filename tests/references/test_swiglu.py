"""SwiGLU against numbers from a pocket calculator: which side is clamped, and when."""

from __future__ import annotations

import math

import pytest
import torch

from references.moe_staged import staged_activation
from references.swiglu import slopes, swiglu


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("gate", "up", "limit", "due"),
    [
        (2.0, 3.0, None, _silu(2) * 3),
        (12.0, 1.0, 10.0, _silu(10)),
        (-12.0, 1.0, 10.0, _silu(-12)),  # no clamp from below
        (4.0, 1.0, 1.0, _silu(1)),  # not min(silu(4), 1) = 1
        (1.0, 16.0, 10.0, _silu(1) * 10),
        (1.0, -16.0, 10.0, _silu(1) * -10),
    ],
)
def test_values(gate, up, limit, due):
    found = swiglu(torch.tensor([gate], dtype=torch.float64), torch.tensor([up], dtype=torch.float64), limit)
    assert found.item() == pytest.approx(due, rel=1e-14)


def test_alpha_and_beta():
    """gpt-oss: gate * sigmoid(1.702 gate) * (up + 1)."""
    found = swiglu(torch.tensor([2.0]), torch.tensor([3.0]), 7.0, alpha=1.702, beta=1.0)
    assert found.item() == pytest.approx(2 / (1 + math.exp(-3.404)) * 4)


def test_nan_stays_nan():
    one, nan = torch.ones(1), torch.full((1,), math.nan)
    assert swiglu(nan, one, 10.0).isnan().all() and swiglu(one, nan, 10.0).isnan().all()


@pytest.mark.parametrize(("gate", "up"), [(1.0, 2.0), (-3.0, 0.5), (9.0, -4.0), (12.0, 2.0), (2.0, 12.0)])
def test_slopes_are_differences(gate, up):
    g, u, step = torch.tensor([gate]).double(), torch.tensor([up]).double(), 1e-6
    by_gate, by_up = slopes(g, u, 10.0, 1.2, 0.3)
    seen_gate = (swiglu(g + step, u, 10.0, 1.2, 0.3) - swiglu(g - step, u, 10.0, 1.2, 0.3)) / (2 * step)
    seen_up = (swiglu(g, u + step, 10.0, 1.2, 0.3) - swiglu(g, u - step, 10.0, 1.2, 0.3)) / (2 * step)
    assert (by_gate.item(), by_up.item()) == pytest.approx((seen_gate.item(), seen_up.item()), abs=1e-6)


@pytest.mark.parametrize(
    ("scheme", "limit", "due"),
    [
        ("bf16", None, 32.0),
        ("bf16", 10.0, 10.0),  # silu(10) = 9.99955 is 10 in BF16
        ("bf16", 1.0, 0.73046875),
        ("mxfp8", None, 32.0),
        ("mxfp8", 10.0, 10.0),
        ("mxfp8", 1.0, 0.75),
    ],
)
def test_the_probes_gate_of_32(scheme, limit, due):
    """The values that exact probes rely on, one channel of a group."""
    gate = torch.zeros(1, 32, dtype=torch.float64)
    up = gate.clone()
    gate[0, 0], up[0, 0] = 32.0, 1.0
    assert staged_activation(gate, up, scheme, limit)[0, 0].item() == due


def test_15_stays_15_where_scales_round_up():
    gate = torch.full((1, 32), 10.0, dtype=torch.float64)
    assert set(staged_activation(gate, gate * 0 + 1.5, "mxfp8", 10.0).flatten().tolist()) == {15.0}
