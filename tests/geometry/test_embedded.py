"""The models that ship with the harness have the dimensions that contracts.md lists."""

from __future__ import annotations

import pytest

from conformance import geometry

V4_FLASH = {
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "attention_heads": 64,
    "head_dim": 512,
    "kv_heads": 1,
    "output_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "intermediate": 2048,
    "experts": 256,
    "top_k": 6,
    "shared_experts": 1,
    "shared_intermediate": 2048,
    "vocab": 129280,
    "index_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "swiglu_limit": 10.0,
    "layers": 43,
}
DUE = {
    "deepseek-v4-flash": V4_FLASH,
    "deepseek-v4-pro": {
        "hidden_size": 7168,
        "attention_heads": 128,
        "output_groups": 16,
        "q_lora_rank": 1536,
        "intermediate": 3072,
        "experts": 384,
        "layers": 61,
        "index_topk": 1024,
    },
    "deepseek-v4.1-flash": {
        "hidden_size": 5120,
        "attention_heads": 64,
        "output_groups": 8,
        "q_lora_rank": 1280,
        "intermediate": 2304,
        "experts": 384,
        "layers": 40,
    },
    "gpt-oss-120b": {
        "hidden_size": 2880,
        "intermediate": 2880,
        "experts": 128,
        "top_k": 4,
        "output_groups": 0,
        "shared_intermediate": 0,
    },
}


@pytest.mark.parametrize("model", DUE)
def test_dimensions(model):
    found = geometry.load(model)
    assert {field: getattr(found, field) for field in DUE[model]} == DUE[model]
    assert found.name == model


def test_v4_flash_config():
    """What real stacks read: window, compression (one entry more for the draft layer), hash layers, quantization."""
    config = geometry.load("deepseek-v4-flash").config
    assert config["compress_ratios"] == [0, 0, *[4, 128] * 20, 4, 0]
    assert len(config["compress_ratios"]) == 44
    assert (config["sliding_window"], config["num_hash_layers"], config["hc_mult"]) == (128, 3, 4)
    assert (config["scoring_func"], config["routed_scaling_factor"]) == ("sqrtsoftplus", 1.5)
    assert config["qk_rope_head_dim"] == 64
    assert config["quantization_config"]["weight_block_size"] == [128, 128]


def test_every_embedded_model_is_tested_or_tiny():
    assert set(geometry.embedded()) == {*DUE, "deepseek-v4-tiny"}


@pytest.mark.parametrize(
    ("parameter", "due"),
    [
        ("w13_weight", (2048, 2048)),
        ("w13_weight_scale", (2048, 128)),
        ("w2_weight", (4096, 1024)),
        ("w2_weight_scale", (4096, 64)),
    ],
)
def test_checkpoint_shapes(parameter, due):
    """V4-Flash: w1 and w3 are 2048 x 4096 elements, w2 is 4096 x 2048; 2 elements a byte, 32 a scale."""
    assert geometry.load("deepseek-v4-flash").checkpoint_shape(parameter) == due


def test_unpadded_axes():
    flash = {"kv_heads": 1, "hidden_size": 4096, "experts": 256, "top_k": 6, "index_heads": 64}
    assert geometry.load("deepseek-v4-flash").unpadded == flash
    assert "index_heads" not in geometry.load("gpt-oss-120b").unpadded
