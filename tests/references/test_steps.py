"""What Marlin's roundings cost: the figures that `moe.tp3.reference` tells beside a measurement."""

import pytest
import torch

from conformance.provenance.checkpoint import seeded
from references.finalize import bf16
from references.moe import moe
from references.moe_staged import moe_staged
from tests.references.test_bound import Weights

HIDDEN, CHANNELS, SLOTS, TOKENS = 512, 256, 6, 32


@pytest.mark.parametrize(("in_bf16", "due"), [(False, 1.25), (True, 1.15)])
def test_the_ratio_of_errors(in_bf16, due):
    rng = torch.Generator().manual_seed(0)
    experts = Weights(seeded(0), HIDDEN, CHANNELS).packed
    x = (torch.randn(TOKENS, HIDDEN, generator=rng) * 32 / HIDDEN**0.5).bfloat16()
    ids = torch.arange(SLOTS, dtype=torch.int32).repeat(TOKENS, 1)
    weights = torch.softmax(torch.randn(TOKENS, SLOTS, generator=rng), -1) * 1.5
    if in_bf16:
        weights = bf16(weights)
    exact = moe(x, ids, weights, experts, CHANNELS, 10.0)
    steps, kept = (
        float((moe_staged(x, ids, weights, experts, CHANNELS, scheme, 10.0) - exact).norm())
        for scheme in ("bf16_steps", "bf16")
    )
    assert steps / kept == pytest.approx(due, abs=0.04)
