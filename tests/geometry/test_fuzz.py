"""Whatever object a config.json holds, parsing it gives a Geometry or a UsageError of one line, and nothing else."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from conformance import geometry
from conformance.errors import UsageError
from tests.geometry.test_bad_configs import GOOD

_FIELDS = [*GOOD, "intermediate_size", "num_local_experts", "o_groups", "n_shared_experts", "index_topk", "text_config"]
_SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_JSON = st.recursive(
    _SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_SANE = st.sampled_from([1, 2, 3, 4, 8, 16, 32, 33, 64, 128, 256, 1 << 17, (1 << 17) + 32, 1 << 24])


def _parse(config: dict) -> geometry.Geometry | None:
    try:
        return geometry.parse(config, "fuzzed", where="fuzzed.json")
    except UsageError as error:
        assert str(error).startswith("fuzzed.json: ")
        assert len(str(error)) < 400
        return None


@given(st.dictionaries(st.sampled_from(_FIELDS) | st.text(max_size=8), _JSON, max_size=20))
def test_any_object(config):
    _parse(config)


@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON | _SANE, max_size=4), st.booleans())
def test_a_good_one_with_changes(changes, nested):
    config = GOOD | changes
    found = _parse({"text_config": config} if nested else config)
    if found:
        assert found.hidden_size % 32 == 0 and found.intermediate % 32 == 0
        assert 1 <= found.top_k <= found.experts
        assert found.attention_heads % found.kv_heads == 0


@given(st.fixed_dictionaries(dict.fromkeys(GOOD, _SANE)))
def test_numbers_alone(config):
    """Accepted exactly if they go together."""
    due = (
        config["hidden_size"] % 32 == 0
        and config["moe_intermediate_size"] % 32 == 0
        and config["num_experts_per_tok"] <= config["n_routed_experts"]
        and config["num_attention_heads"] % config["num_key_value_heads"] == 0
        and max(config["hidden_size"], config["moe_intermediate_size"]) <= 1 << 17
        and max(config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) <= 1 << 12
        and max(config["n_routed_experts"], config["num_experts_per_tok"]) <= 1 << 14
        and config["num_hidden_layers"] <= 1 << 12
    )
    assert (_parse(config) is not None) == due


@given(st.binary(max_size=200))
def test_any_bytes(tmp_path, data):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    try:
        geometry.load(str(path))
    except UsageError as error:
        assert str(path) in str(error) and len(str(error).splitlines()) == 1


@given(_JSON)
def test_any_document(tmp_path, document):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    try:
        geometry.load(str(path))
    except UsageError as error:
        assert str(path) in str(error) and len(str(error).splitlines()) == 1
