"""The MoE reference against loops over single numbers, and its staged twin against roundings by hand."""

from __future__ import annotations

import math

import pytest
import torch

from references import mxfp4
from references.finalize import bf16
from references.moe import Packed, blocks, moe, routed
from references.moe_staged import moe_staged

H, CHANNELS, EXPERTS, M, K = 32, 96, 3, 4, 2


def _tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng)

    def scales(*shape: int) -> torch.Tensor:
        return torch.randint(121, 125, shape, dtype=torch.uint8, generator=rng)

    return {
        "w1": codes(EXPERTS, CHANNELS, H // 2),
        "w1_scale": scales(EXPERTS, CHANNELS, H // 32),
        "w3": codes(EXPERTS, CHANNELS, H // 2),
        "w3_scale": scales(EXPERTS, CHANNELS, H // 32),
        "w2": codes(EXPERTS, H, CHANNELS // 2),
        "w2_scale": scales(EXPERTS, H, CHANNELS // 32),
    }


def _experts(t: dict[str, torch.Tensor], seen: list[int] | None = None):
    def packed(expert: int, start: int, stop: int) -> Packed:
        if seen is not None:
            seen.append(expert)
        rows = slice(start, stop)
        return Packed(
            *(t[name][expert, rows] for name in ("w1", "w1_scale", "w3", "w3_scale")),
            t["w2"][expert, :, start // 2 : stop // 2],
            t["w2_scale"][expert, :, start // 32 : stop // 32],
        )

    return packed


def _inputs(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(EXPERTS, generator=rng)[:K] for _ in range(M)]).int()
    ids[1, 0], ids[2] = -1, -1
    return torch.randn(M, H, generator=rng).bfloat16(), ids, torch.rand(M, K, generator=rng)


def _by_hand(t, x, ids, weights, limit) -> torch.Tensor:
    w = {n: mxfp4.dequantize(t[n].flatten(0, 1), t[f"{n}_scale"].flatten(0, 1)).unflatten(0, (EXPERTS, -1))
         for n in ("w1", "w3", "w2")}  # fmt: skip
    y = torch.zeros(M, H, dtype=torch.float64)
    for token in range(M):
        inputs = x[token].tolist()
        for slot in range(K):
            e = int(ids[token, slot])
            if e < 0:
                continue
            for i in range(CHANNELS):
                gate, up = (sum(a * b for a, b in zip(inputs, w[n][e, i].tolist(), strict=True)) for n in ("w1", "w3"))
                gate, up = min(gate, limit), max(-limit, min(up, limit))
                y[token] += float(weights[token, slot]) * gate / (1 + math.exp(-gate)) * up * w["w2"][e, :, i]
    return y


@pytest.mark.parametrize("limit", [1.0, 10.0])
@pytest.mark.parametrize("block", [32, 512])
def test_it_is_the_formula(limit, block):
    t, (x, ids, weights) = _tensors(), _inputs()
    found = moe(x, ids, weights, _experts(t), CHANNELS, limit, block=block)
    torch.testing.assert_close(found, _by_hand(t, x, ids, weights, limit), rtol=1e-10, atol=1e-12)
    assert not found[2].any(), "no slot holds an expert"


def test_fp32_is_close():
    t, (x, ids, weights) = _tensors(), _inputs()
    exact = moe(x, ids, weights, _experts(t), CHANNELS, 10.0)
    found = moe(x, ids, weights, _experts(t), CHANNELS, 10.0, dtype=torch.float32)
    assert float((found - exact).norm() / exact.norm()) < 1e-6


def test_only_experts_that_are_routed_to_are_decoded():
    t, (x, ids, weights) = _tensors(), _inputs()
    seen: list[int] = []
    moe(x[:1], torch.tensor([[2, 2]]), weights[:1], _experts(t, seen), CHANNELS)
    assert set(seen) == {2}
    assert [e for e, _, _ in routed(ids)] == sorted(set(ids.flatten().tolist()) - {-1})
    assert list(blocks(96, 64)) == [(0, 64), (64, 96)]


def test_channels_add_up_over_ranks():
    """Two ranks of 32 and 64 channels are the whole: tensor parallelism as the harness uses it."""
    t, (x, ids, weights) = _tensors(), _inputs()
    whole, experts = moe(x, ids, weights, _experts(t), CHANNELS, 10.0), _experts(t)
    parts = moe(x, ids, weights, experts, 32, 10.0) + moe(
        x, ids, weights, lambda e, a, b: experts(e, a + 32, b + 32), 64, 10.0
    )
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (1 + 2.0**-8, 1.0),
        (1 + 3 * 2.0**-8, 1 + 2.0**-6),
        (1 + 2.0**-7, 1 + 2.0**-7),
        (257.0, 256.0),
        (-3.01, -3.015625),
    ],
)
def test_bf16_rounds_to_nearest_even(value, left):
    assert bf16(torch.tensor([value], dtype=torch.float64)).item() == left


@pytest.mark.parametrize(("scheme", "least", "most"), [("bf16", 2e-3, 4.5e-3), ("mxfp8", 2e-2, 8e-2)])
def test_staging_costs_what_its_roundings_cost(scheme, least, most):
    """BF16: up to five roundings of 1.66e-3 each; MXFP8: two of about 2.6e-2."""
    t, (x, ids, weights) = _tensors(), _inputs()
    exact = moe(x, ids, weights, _experts(t), CHANNELS, 10.0)
    found = moe_staged(x, ids, weights, _experts(t), CHANNELS, scheme, 10.0)
    assert least < float((found - exact).norm() / exact.norm()) < most
    assert torch.equal(found, bf16(found))
