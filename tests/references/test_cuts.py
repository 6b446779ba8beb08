"""The audit's numbers for every tensor that is cut, and the law that ranks' parts make the tensor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import geometry
from references import checkpoint, cuts

FLASH = geometry.load("deepseek-v4-flash").config


@pytest.mark.parametrize(
    ("kind", "dtype", "spans", "share"),
    [
        ("layers.*.attn.wq_b.weight", "F8_E4M3", [(0, 12288), (12288, 24576), (24576, 32768)], 12288),
        ("layers.*.attn.wq_b.scale", "F8_E8M0", [(0, 96), (96, 192), (192, 256)], 96),
        ("layers.*.attn.wo_a.weight", "F8_E4M3", [(0, 3072), (3072, 6144), (6144, 8192)], 3072),
        ("layers.*.attn.wo_b.weight", "F8_E4M3", [(0, 3072), (3072, 6144), (6144, 8192)], 3072),
        ("layers.*.attn.wo_b.scale", "F8_E8M0", [(0, 24), (24, 48), (48, 64)], 24),
        ("layers.*.attn.attn_sink", "F32", [(0, 24), (24, 48), (48, 64)], 24),
        ("layers.*.ffn.shared_experts.w1.weight", "F8_E4M3", [(0, 768), (768, 1536), (1536, 2048)], 768),
        ("layers.*.ffn.shared_experts.w2.scale", "F8_E8M0", [(0, 6), (6, 12), (12, 16)], 6),
        ("layers.*.ffn.experts.*.w1.weight", "I8", [(0, 704), (704, 1408), (1408, 2048)], 704),
        ("layers.*.ffn.experts.*.w1.scale", "F8_E8M0", [(0, 704), (704, 1408), (1408, 2048)], 704),
        ("layers.*.ffn.experts.*.w2.weight", "I8", [(0, 352), (352, 704), (704, 1024)], 352),
        ("layers.*.ffn.experts.*.w2.scale", "F8_E8M0", [(0, 22), (22, 44), (44, 64)], 22),
        ("mtp.*.ffn.experts.*.w2.scale", "F8_E8M0", [(0, 22), (22, 44), (44, 64)], 22),
        ("embed.weight", "BF16", [(0, 43136), (43136, 86272), (86272, 129280)], 43136),
    ],
)
def test_flash_at_tp3(kind, dtype, spans, share):
    found = [cuts.cut(FLASH, 3, rank, kind, dtype) for rank in range(3)]
    assert [(c.start, c.stop) for c in found] == spans
    assert {c.share for c in found} == {share}


def test_a_boundary_inside_a_block_is_an_error():
    with pytest.raises(ValueError, match="inside a unit of 128"):
        cuts.cut(FLASH | {"o_lora_rank": 1000}, 3, 1, "layers.*.attn.wo_a.scale", "F8_E8M0")


@given(
    name=st.sampled_from([g for g in geometry.embedded() if g.startswith("deepseek")]),
    tp=st.integers(1, 16),
    data=st.data(),
)
def test_the_ranks_parts_make_the_tensor(name, tp, data):
    config = geometry.load(name).config
    tensors = checkpoint.tensors(config | {"n_routed_experts": 2, "num_experts_per_tok": 1}, range(1))
    tensor = data.draw(st.sampled_from(sorted(tensors.values())))
    try:
        parts = [cuts.cut(config, tp, rank, tensor.kind, tensor.dtype) for rank in range(tp)]
    except ValueError:
        return  # no plan of whole groups
    if parts[0] is None:
        assert set(parts) == {None}
        return
    size = tensor.shape[parts[0].axis]
    assert [i for c in parts for i in range(c.start, c.stop)] == list(range(size))
    assert all(c.stop - c.start <= c.share for c in parts)
