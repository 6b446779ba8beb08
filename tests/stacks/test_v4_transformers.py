"""The reference implementation against transformers' own DeepSeek-V4, on the same decoded weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from references import make_checkpoint
from references.v4_model import Model

modeling = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
configuration = pytest.importorskip("transformers.models.deepseek_v4.configuration_deepseek_v4")

#: Small, with an indexer that has to choose and every kind of layer and of router.
CONFIG: dict[str, Any] = make_checkpoint.EVEN | {
    "vocab_size": 128,
    "num_hidden_layers": 4,
    "compress_ratios": [0, 4, 128, 4],
    "num_hash_layers": 2,
    "num_nextn_predict_layers": 0,
    "sliding_window": 16,
    "index_topk": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "swiglu_limit": 1.0,
}
TOKENS = 150

_PARTS = {
    "attn_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "attn.wq_a": "self_attn.q_a_proj.weight",
    "attn.q_norm": "self_attn.q_a_norm.weight",
    "attn.wq_b": "self_attn.q_b_proj.weight",
    "attn.wkv": "self_attn.kv_proj.weight",
    "attn.kv_norm": "self_attn.kv_norm.weight",
    "attn.wo_a": "self_attn.o_a_proj.weight",
    "attn.wo_b": "self_attn.o_b_proj.weight",
    "attn.attn_sink": "self_attn.sinks",
    "attn.indexer.wq_b": "self_attn.compressor.indexer.q_b_proj.weight",
    "attn.indexer.weights_proj": "self_attn.compressor.indexer.scorer.weights_proj.weight",
    "ffn.gate": "mlp.gate.weight",
    "ffn.gate.tid2eid": "mlp.gate.tid2eid",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    "ffn.shared_experts.w1": "mlp.shared_experts.gate_proj.weight",
    "ffn.shared_experts.w3": "mlp.shared_experts.up_proj.weight",
    "ffn.shared_experts.w2": "mlp.shared_experts.down_proj.weight",
    **{f"hc_{kind}_{part}": f"{kind}_hc.{part}" for kind in ("attn", "ffn") for part in ("fn", "base", "scale")},
}
for _ours, _theirs in (
    ("attn.compressor", "self_attn.compressor"),
    ("attn.indexer.compressor", "self_attn.compressor.indexer"),
):
    _PARTS |= {
        f"{_ours}.wkv": f"{_theirs}.kv_proj.weight",
        f"{_ours}.wgate": f"{_theirs}.gate_proj.weight",
        f"{_ours}.ape": f"{_theirs}.position_bias",
        f"{_ours}.norm": f"{_theirs}.kv_norm.weight",
    }


def _state(model: Model) -> dict[str, torch.Tensor]:
    w, c = model.w, model.config
    found = {"model.embed_tokens.weight": w("embed"), "lm_head.weight": w("head"), "model.norm.weight": w("norm")}
    found |= {f"model.hc_head.hc_{part}": w(f"hc_head_{part}") for part in ("fn", "base", "scale")}
    for n in range(c["num_hidden_layers"]):
        found |= {
            f"model.layers.{n}.{there}": w(f"layers.{n}.{here}")
            for here, there in _PARTS.items()
            if f"layers.{n}.{here}" in w
        }
        experts = [
            [w(f"layers.{n}.ffn.experts.{e}.{p}") for e in range(c["n_routed_experts"])] for p in ("w1", "w3", "w2")
        ]
        w1, w3, w2 = (torch.stack(part) for part in experts)
        found[f"model.layers.{n}.mlp.experts.gate_up_proj"] = torch.cat([w1, w3], 1)
        found[f"model.layers.{n}.mlp.experts.down_proj"] = w2
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Any]:
    folder: Path = tmp_path_factory.mktemp("model") / "tiny"
    make_checkpoint.write(folder, CONFIG)
    ours = Model(folder)
    given = json.loads((folder / "config.json").read_text())
    config = configuration.DeepseekV4Config(**{k: v for k, v in given.items() if k != "quantization_config"})
    config._attn_implementation = "eager"
    theirs = modeling.DeepseekV4ForCausalLM(config).float().eval()
    missing, unexpected = theirs.load_state_dict(_state(ours), strict=False)
    assert not unexpected
    assert not [name for name in missing if "inv_freq" not in name]
    return ours, theirs


def test_log_probabilities_agree(pair):
    ours, theirs = pair
    tokens = torch.randint(2, CONFIG["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        due = torch.log_softmax(theirs(tokens[None], use_cache=False).logits[0], -1)
    got = ours.log_probabilities(tokens)
    assert float((got - due).abs().max()) < 1e-3
    assert float(due.amax() - due.amin()) > 5


def test_the_limit_is_seen(pair):
    """Without it, the same model answers otherwise: agreement above says something about it."""
    ours, _ = pair
    tokens = torch.arange(2, 40)
    right = ours.log_probabilities(tokens)
    ours.config["swiglu_limit"] = None
    try:
        assert float((ours.log_probabilities(tokens) - right).abs().max()) > 0.1
    finally:
        ours.config["swiglu_limit"] = CONFIG["swiglu_limit"]
