"""The layout of gpt-oss-120b, less its experts' blocks, and its cuts: numbers of the published checkpoint."""

from __future__ import annotations

import pytest

from conformance import geometry
from references import gpt_oss

CONFIG = geometry.load("gpt-oss-120b").config
PREFIX = "model.layers.*."


def test_names_and_shapes():
    found = gpt_oss.tensors(CONFIG, range(36))
    assert len(found) == 3 + 36 * 15 and {t.dtype for t in found.values()} == {"BF16"}
    shapes = {name: t.shape for name, t in found.items()}
    assert shapes["lm_head.weight"] == (201088, 2880)
    assert shapes["model.layers.35.self_attn.q_proj.weight"] == (4096, 2880)
    assert shapes["model.layers.0.self_attn.v_proj.bias"] == (512,)
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (2880, 4096)
    assert shapes["model.layers.7.mlp.experts.gate_up_proj_bias"] == (128, 5760)
    assert shapes["model.layers.7.mlp.experts.down_proj_bias"] == (128, 2880)


@pytest.mark.parametrize(
    ("kind", "tp", "due"),
    [
        ("self_attn.q_proj.weight", 4, [(0, 1024), (1024, 2048), (2048, 3072), (3072, 4096)]),
        ("self_attn.k_proj.bias", 8, [(64 * rank, 64 * rank + 64) for rank in range(8)]),
        ("self_attn.sinks", 2, [(0, 32), (32, 64)]),
        ("self_attn.o_proj.weight", 2, [(0, 2048), (2048, 4096)]),
        ("mlp.experts.gate_up_proj_bias", 4, [(0, 1472), (1472, 2944), (2944, 4416), (4416, 5760)]),
        ("mlp.experts.down_proj_bias", 2, [(0, 2880), (0, 0)]),
    ],
)
def test_parts(kind, tp, due):
    parts = [gpt_oss.cut(CONFIG, tp, rank, PREFIX + kind) for rank in range(tp)]
    assert [(part.start, part.stop) for part in parts] == due


def test_what_every_rank_holds_whole():
    for kind in ("self_attn.o_proj.bias", "mlp.router.weight", "mlp.router.bias", "input_layernorm.weight"):
        assert gpt_oss.cut(CONFIG, 4, 1, PREFIX + kind) is None
    assert gpt_oss.cut(CONFIG, 4, 1, "model.norm.weight") is None


def test_heads_are_shared_out_whole_or_not_at_all():
    with pytest.raises(ValueError, match="8 heads cannot be shared out whole among 16 ranks"):
        gpt_oss.cut(CONFIG, 16, 0, f"{PREFIX}self_attn.k_proj.weight")
    with pytest.raises(ValueError, match="model_type"):
        gpt_oss.tensors({"model_type": "deepseek_v4"}, range(1))
