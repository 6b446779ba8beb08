"""The attention references against transformers' own DeepSeek-V4 attention, every kind of layer, tiny sizes.

transformers computes rotations and index scores in FP32, whatever the type of the rest: 1e-4 is far above that.
"""

from __future__ import annotations

import pytest
import torch

from references import (
    attention,
    attention_compress,
    attention_index,
    attention_output,
    attention_rope,
    attention_seen,
)

pytest.importorskip("transformers", reason="transformers is not installed beside these tests")
modeling = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
configuration = pytest.importorskip("transformers.models.deepseek_v4.configuration_deepseek_v4")

S, WINDOW, TOPK, HEADS, GROUPS, DIM = 300, 16, 6, 4, 2, 128
KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
YARN = {"factor": 16.0, "original_max_position_embeddings": 65536, "beta_fast": 32.0, "beta_slow": 1.0}


def _module(ratio: int):
    main = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 64 / DIM}
    compress = {"rope_type": "yarn", "rope_theta": 160000.0, "partial_rotary_factor": 64 / DIM, **YARN}
    config = configuration.DeepseekV4Config(
        hidden_size=96,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        head_dim=DIM,
        q_lora_rank=32,
        o_groups=GROUPS,
        o_lora_rank=24,
        index_n_heads=64,
        index_head_dim=DIM,
        index_topk=TOPK,
        sliding_window=WINDOW,
        layer_types=[KINDS[ratio]],
        rope_parameters={"main": main, "compress": compress | {"attention_factor": 1.0}},
        partial_rotary_factor=64 / DIM,
        max_position_embeddings=1048576,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    module = modeling.DeepseekV4Attention(config, 0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return config, module.double().eval()


@pytest.mark.parametrize("ratio", KINDS)
def test_a_whole_layer(ratio):
    config, module = _module(ratio)
    hidden = torch.randn(1, S, 96, dtype=torch.float64)
    at = torch.arange(S)
    rotary = modeling.DeepseekV4RotaryEmbedding(config)
    tables = {kind: rotary(hidden.float(), at[None], layer_type=kind) for kind in ("main", "compress")}
    mask = torch.full((S, S), -torch.inf, dtype=torch.float64)
    mask[(at[:, None] >= at) & (at[:, None] - at < WINDOW)] = 0
    with torch.no_grad():
        due = module(hidden, tables, at[None], mask[None, None])[0][0]
        got = _reference(module, hidden[0], ratio)
    assert float((got - due).norm() / due.norm()) < 1e-4


def _reference(module, hidden: torch.Tensor, ratio: int) -> torch.Tensor:
    eps, at = module.kv_norm.variance_epsilon, torch.arange(S)
    frequency = attention_rope.frequencies(160000, YARN) if ratio else attention_rope.frequencies(10000)
    table = attention_rope.table(frequency, S)
    norm = attention_compress.normalised
    low = norm(module.q_a_proj(hidden), module.q_a_norm.weight, eps)
    q = attention_rope.rotated(norm(module.q_b_proj(low).view(S, HEADS, DIM), None, eps), at, table)
    kv = attention_rope.rotated(norm(module.kv_proj(hidden), module.kv_norm.weight, eps), at, table)
    numbers, values = attention_seen.window(at, WINDOW), kv
    if ratio:
        c = module.compressor
        entries = _entries(c, hidden, ratio, table)
        chosen = attention_seen.entries(at, ratio, len(entries))
        if ratio == 4:
            keys = _entries(c.indexer, hidden, ratio, table)
            queries = c.indexer.q_b_proj(low).view(S, -1, DIM)
            queries = attention_rope.rotated(queries, at, table)
            weights = c.indexer.scorer.weights_proj(hidden)
            chosen = attention_index.lowest(attention_index.scores(queries, weights, keys.expand(S, -1, -1), at), TOPK)
        numbers = torch.cat((numbers, torch.where(chosen >= 0, chosen + S, -1)), 1)
        values = torch.cat((kv, entries))
    seen = lambda t: (values[numbers[t].clamp(min=0)], numbers[t] >= 0)  # noqa: E731
    out = attention.attend(q, seen, module.sinks, DIM**-0.5, numbers.shape[1])[0]
    return attention_output.project(out, at, table, module.o_a_proj.weight, module.o_b_proj.weight, GROUPS)


def _entries(c, hidden: torch.Tensor, ratio: int, table: torch.Tensor) -> torch.Tensor:
    kv, gate, eps = c.kv_proj(hidden), c.gate_proj(hidden), c.kv_norm.variance_epsilon
    return attention_compress.entries(kv, gate, c.position_bias, c.kv_norm.weight, eps, table, ratio)
