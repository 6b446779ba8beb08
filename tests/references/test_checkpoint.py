"""The table of the DeepSeek-V4 checkpoint against what was published, and against configs that have no such layout."""

from __future__ import annotations

from math import prod

import pytest

from conformance import geometry
from references import checkpoint

_FLASH = geometry.load("deepseek-v4-flash").config
_BYTES = {"BF16": 2, "F32": 4, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


def test_flash_is_as_published():
    """DeepSeek-V4-Flash: 69,187 tensors of 158,069,433,298 elements, 148.65 GiB."""
    found = checkpoint.tensors(_FLASH)
    assert len(found) == 69187
    assert sum(prod(t.shape) for t in found.values()) == 158_069_433_298
    assert round(sum(prod(t.shape) * _BYTES[t.dtype] for t in found.values()) / 2**30, 2) == 148.65
    assert len({t.kind for t in found.values()}) == 98


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("embed.weight", "BF16", (129280, 4096)),
        ("hc_head_fn", "F32", (4, 16384)),
        ("layers.0.ffn.gate.tid2eid", "I64", (129280, 6)),
        ("layers.3.ffn.gate.bias", "F32", (256,)),
        ("layers.0.attn.attn_sink", "F32", (64,)),
        ("layers.0.attn.wo_a.weight", "F8_E4M3", (8192, 4096)),
        ("layers.0.attn.wo_a.scale", "F8_E8M0", (64, 32)),
        ("layers.0.attn.wq_b.scale", "F8_E8M0", (256, 8)),
        ("layers.0.hc_attn_fn", "F32", (24, 16384)),
        ("layers.2.attn.compressor.ape", "F32", (4, 1024)),
        ("layers.3.attn.compressor.ape", "F32", (128, 512)),
        ("layers.2.attn.indexer.wq_b.weight", "F8_E4M3", (8192, 1024)),
        ("layers.2.attn.indexer.compressor.wkv.weight", "BF16", (256, 4096)),
        ("layers.42.ffn.experts.255.w2.weight", "I8", (4096, 1024)),
        ("layers.42.ffn.experts.255.w2.scale", "F8_E8M0", (4096, 64)),
        ("mtp.0.e_proj.scale", "F8_E8M0", (32, 32)),
        ("mtp.0.ffn.gate.bias", "F32", (256,)),
    ],
)
def test_tensors_of_flash(name, dtype, shape):
    assert checkpoint.tensors(_FLASH)[name][:2] == (dtype, shape)


def test_a_layer_has_what_its_kind_has():
    found = checkpoint.tensors(_FLASH, layers=[0, 3], experts=1, draft=False)
    assert "layers.0.ffn.gate.tid2eid" in found and "layers.0.ffn.gate.bias" not in found
    assert "layers.3.ffn.gate.bias" in found and "layers.3.ffn.gate.tid2eid" not in found
    assert "layers.3.attn.compressor.ape" in found and "layers.3.attn.indexer.wq_b.weight" not in found
    assert not [name for name in found if name.startswith(("layers.1.", "mtp.")) or ".experts.1." in name]


def test_fp8_experts_have_blocks_and_float_scales():
    found = checkpoint.tensors(_FLASH | {"expert_dtype": "fp8"}, layers=[0], experts=1, draft=False)
    assert found["layers.0.ffn.experts.0.w2.weight"][:2] == ("F8_E4M3", (4096, 2048))
    assert found["layers.0.ffn.experts.0.w2.scale"][:2] == ("F32", (32, 16))
    assert found["layers.0.attn.wkv.scale"][:2] == ("F32", (4, 32))


def test_kind_of_any_name():
    assert all(checkpoint.kind(name) == tensor.kind for name, tensor in checkpoint.tensors(_FLASH).items())
    assert checkpoint.kind("model.layers.3.mlp.w2") == "model.layers.*.mlp.w2"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt_oss"}, "model_type"),
        ({"compress_ratios": [0] * 43}, "compress_ratios"),
        ({"compress_ratios": [0] * 43 + [3]}, "compress_ratios[43]"),
        ({"compress_ratios": [True] * 44}, "compress_ratios[0]"),
        ({"compress_ratios": None}, "compress_ratios"),
        ({"expert_dtype": "fp6"}, "expert_dtype"),
        ({"quantization_config": None}, "quantization_config"),
        ({"hc_mult": float("nan")}, "hc_mult"),
        ({"vocab_size": True}, "vocab_size"),
        ({"index_n_heads": -1}, "index_n_heads"),
        ({"o_groups": 7}, "o_groups"),
        ({"moe_intermediate_size": 2049}, "moe_intermediate_size"),
        ({"num_hash_layers": 1.5}, "num_hash_layers"),
    ],
)
def test_a_config_without_such_a_layout_is_named(change, named):
    with pytest.raises(ValueError, match=named.replace("[", r"\[")):
        checkpoint.tensors(_FLASH | change)
