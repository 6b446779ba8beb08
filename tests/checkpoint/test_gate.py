"""`conformance gate --checkpoint`: what it judges, what it says, and how it ends."""

from __future__ import annotations

import json

import pytest

from tests.cli.calls import call

BYTES = ("--checkpoint-bytes", "--layers", "plan,loader")


@pytest.fixture
def gate(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(path, *words):
        return call(monkeypatch, capsys, "gate", "--emulate", "sm120", "--checkpoint", str(path), *words)

    return run


def _claims(tmp_path) -> dict:
    return {claim["id"]: claim for claim in json.loads((tmp_path / "v.json").read_text())["claims"]}


def _header(file) -> tuple[dict, bytes]:
    data = file.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:length]), data[length:]


def _rewritten(file, change) -> None:
    """The header changed in place; it has to stay as long as it was, or shorter."""
    head, data = _header(file)
    change(head)
    words = json.dumps(head).encode()
    file.write_bytes(len(words).to_bytes(8, "little") + words + data)


def test_a_good_checkpoint_is_a_go_and_its_bytes_are_counted(gate, checkpoint, tmp_path):
    done = gate(checkpoint, *BYTES, "--json", "v.json")
    assert done.code == 0, done.out
    claims = _claims(tmp_path)
    assert claims["loader.files.names"]["status"] == "pass"
    evidence = claims["loader.files.bytes"]["evidence"]
    assert evidence["summary"].startswith("96 routed-expert tensors (1671168 bytes) on 3 ranks")
    assert "verified: layers.*.ffn.experts.*.w1.weight (12)" in evidence["notes"][0]
    assert evidence["notes"][1] == "not verified here: the other 147 tensors of the files (loader.files.tensors)"
    assert "geometry" in json.loads((tmp_path / "v.json").read_text())


def test_without_the_option_nothing_of_it_is_required(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ("gate", "--emulate", "sm120", "--geometry", "deepseek-v4-tiny", "--layers", "plan,loader")
    assert call(monkeypatch, capsys, *words, "--json", "v.json").code == 0
    claim = _claims(tmp_path)["loader.files.names"]
    assert (claim["status"], claim["reason"], claim["required"]) == (
        "not-applicable",
        "--checkpoint is not given",
        True,
    )


def test_bytes_alone_are_not_applicable_without_their_option(gate, checkpoint, tmp_path):
    assert gate(checkpoint, "--layers", "plan,loader", "--json", "v.json").code == 0
    assert _claims(tmp_path)["loader.files.bytes"]["reason"] == "--checkpoint-bytes is not given"


def test_a_missing_tensor_is_named_and_stops_the_bytes(gate, checkpoint, tmp_path):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"num_hash_layers": 2}))
    done = gate(checkpoint, *BYTES, "--json", "v.json")
    assert done.code == 1
    claims = _claims(tmp_path)
    names = claims["loader.files.names"]["evidence"]
    assert "1 missing (layers.1.ffn.gate.tid2eid), 1 not due (layers.1.ffn.gate.bias)" in names["summary"]
    missing, extra = names["findings"]
    assert missing["where"] == f"{checkpoint}: layers.1.ffn.gate.tid2eid" and missing["expected"] == "I64 [640, 2]"
    assert extra["where"].endswith("safetensors: layers.1.ffn.gate.bias")
    assert extra["meaning"] == "another kind of layer has it"
    assert claims["loader.files.bytes"]["status"] == "blocked"


def test_types_and_shapes_are_named_with_file_and_key(gate, checkpoint, tmp_path):
    def change(head):
        head["layers.0.attn.wkv.scale"]["dtype"] = "U8"
        head["layers.0.attn.wo_a.weight"]["shape"] = [4096, 256]

    _rewritten(checkpoint / "model-00001-of-00002.safetensors", change)
    assert gate(checkpoint, "--layers", "plan,loader", "--json", "v.json").code == 1
    claims = _claims(tmp_path)
    (finding,) = claims["loader.files.dtypes"]["evidence"]["findings"]
    assert finding["where"] == "model-00001-of-00002.safetensors: layers.0.attn.wkv.scale"
    assert (finding["expected"], finding["got"]) == ("type F8_E8M0", "type U8")
    assert "shape [4096, 256], [256, 4096] due" in claims["loader.files.shapes"]["reason"]


def test_converted_names_are_recognised(gate, checkpoint, tmp_path):
    def renamed(name):
        return name.replace(".wkv.scale", ".wkv.weight_scale_inv")

    for file in checkpoint.glob("*.safetensors"):
        head, data = _header(file)
        words = json.dumps({renamed(name): value for name, value in head.items()}).encode()
        file.write_bytes(len(words).to_bytes(8, "little") + words + data)
    index = checkpoint / "model.safetensors.index.json"
    listed = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {renamed(name): file for name, file in listed.items()}}))
    assert gate(checkpoint, "--layers", "plan,loader", "--json", "v.json").code == 1
    extra = [f for f in _claims(tmp_path)["loader.files.names"]["evidence"]["findings"] if "inv" in f["where"]]
    assert extra[0]["meaning"] == "released as layers.0.attn.wkv.scale: a converted checkpoint"


def test_another_model_has_no_known_layout(gate, checkpoint, tmp_path):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"model_type": "other"}))
    assert gate(checkpoint, "--layers", "loader", "--json", "v.json").code == 3
    assert "the checkpoint layout of 'other' is not known" in _claims(tmp_path)["loader.files.names"]["reason"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--geometry", "deepseek-v4-pro"), "--checkpoint brings its own config.json; leave --geometry out"),
        (("--checkpoint", ""), "--checkpoint-bytes needs --checkpoint"),
    ],
)
def test_options_that_do_not_go_together(gate, checkpoint, words, line):
    done = gate(checkpoint, *BYTES, *words)
    assert done.code == 2 and line in done.err


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compress_ratios", [0]),
        ("compress_ratios", [0, 4, 5, 0]),
        ("hc_mult", True),
        ("num_nextn_predict_layers", 1 << 20),
        ("num_nextn_predict_layers", -1),
        ("n_routed_experts", 1 << 14),
        ("num_hash_layers", 0.5),
    ],
)
def test_a_config_without_a_layout_is_a_wrong_call(gate, checkpoint, key, value):
    config = json.loads((checkpoint / "config.json").read_text()) | {key: value}
    if key == "n_routed_experts":
        config |= {"num_hidden_layers": 4000, "compress_ratios": [0] * 4001}
    (checkpoint / "config.json").write_text(json.dumps(config))
    done = gate(checkpoint, "--layers", "loader")
    assert done.code == 2 and len(done.err.splitlines()) == 1
    assert f"{checkpoint / 'config.json'}: " in done.err and (key in done.err or "experts" in done.err)


def test_a_truncated_file_is_a_wrong_call(gate, checkpoint):
    file = checkpoint / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    done = gate(checkpoint, "--layers", "loader")
    assert done.code == 2 and len(done.err.splitlines()) == 1
    assert str(file) in done.err and "truncated?" in done.err


def test_a_resumed_run_wants_the_same_files(gate, checkpoint):
    assert gate(checkpoint, "--layers", "plan", "--run-dir", "run").code == 0
    assert gate(checkpoint, "--layers", "plan", "--run-dir", "run", "--resume").code == 0
    _rewritten(checkpoint / "model-00001-of-00002.safetensors", lambda head: head["embed.weight"].update(dtype="F16"))
    done = gate(checkpoint, "--layers", "plan", "--run-dir", "run", "--resume")
    assert done.code == 2 and "checkpoint_sha256" in done.err
