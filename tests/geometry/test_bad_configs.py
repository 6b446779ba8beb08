"""Every config.json that is none: one line that names the file and the field, and says what was due."""

from __future__ import annotations

import json
import os
import threading

import pytest

from conformance import geometry
from conformance.errors import UsageError

GOOD = {
    "hidden_size": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "moe_intermediate_size": 256,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 640,
    "num_hidden_layers": 2,
}


def _complaint(name) -> str:
    with pytest.raises(UsageError) as caught:
        geometry.load(str(name))
    words = str(caught.value)
    assert len(words.splitlines()) == 1
    assert len(words) < 500, "a line that a person can read"
    return words


def _bad(tmp_path, text: str | bytes) -> str:
    path = tmp_path / "model.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    words = _complaint(path)
    assert str(path) in words
    return words


def test_the_good_one_is_good(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    found = geometry.load(str(tmp_path))
    assert (found.hidden_size, found.intermediate, found.kv_heads, found.name) == (256, 256, 2, tmp_path.name)
    assert geometry.load(str(tmp_path / "config.json")) == found


@pytest.mark.parametrize("field", GOOD)
def test_missing(tmp_path, field):
    rest = {k: v for k, v in GOOD.items() if k != field}
    assert f"{field}" in _bad(tmp_path, json.dumps(rest))
    assert "missing" in _bad(tmp_path, json.dumps(rest | {field: None}))


@pytest.mark.parametrize("field", GOOD)
@pytest.mark.parametrize(
    "value",
    [
        "-1",
        "0",
        "1.5",
        "256.0",
        "true",
        '"256"',
        "[256]",
        '{"a": 1}',
        "16777217",
        "1e99",
        "9" * 30,
        '"' + "x" * 9999 + '"',
    ],
)
def test_no_whole_number_in_range(tmp_path, field, value):
    text = json.dumps(GOOD | {field: "HERE"}).replace('"HERE"', value)
    words = _bad(tmp_path, text)
    assert field in words and "due" in words


@pytest.mark.parametrize("field", ["o_groups", "n_shared_experts", "q_lora_rank", "index_n_heads", "index_topk"])
@pytest.mark.parametrize("value", [-1, 0.5, True, "8", [8], 1 << 40])
def test_optional_fields_too(tmp_path, field, value):
    assert field in _bad(tmp_path, json.dumps(GOOD | {field: value}))


@pytest.mark.parametrize("value", [-1, 0, True, "10", [10], 1e9])
def test_swiglu_limit(tmp_path, value):
    assert "swiglu_limit" in _bad(tmp_path, json.dumps(GOOD | {"swiglu_limit": value}))


@pytest.mark.parametrize("value", [5, ["deepseek_v4"], True])
def test_model_type(tmp_path, value):
    assert "model_type" in _bad(tmp_path, json.dumps(GOOD | {"model_type": value}))


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"num_experts_per_tok": 5}, ["num_experts_per_tok", "n_routed_experts"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads", "num_key_value_heads"]),
        ({"o_groups": 3}, ["num_attention_heads", "o_groups"]),
        ({"moe_intermediate_size": 250}, ["moe_intermediate_size"]),
        ({"hidden_size": 250}, ["hidden_size"]),
    ],
)
def test_fields_that_do_not_go_together(tmp_path, change, fields):
    words = _bad(tmp_path, json.dumps(GOOD | change))
    assert all(field in words for field in fields)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_has_not(tmp_path, number):
    assert "config.json" in _bad(tmp_path, json.dumps(GOOD | {"vocab_size": "HERE"}).replace('"HERE"', number))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "hidden_size: 256",
        '{"a": 1} {"b": 2}',
        b"\x00\x01\x02",
        b"\xff\xfe{\x00}\x00",
        b'{"a": "\xff"}',
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a": "\\ud800"}',
    ],
)
def test_no_json(tmp_path, text):
    assert "not a readable config.json" in _bad(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "kind"), [("[]", "list"), ("3", "int"), ('"a"', "str"), ("null", "None"), ("1.5", "float")]
)
def test_no_object(tmp_path, text, kind):
    assert kind in _bad(tmp_path, text)


def test_too_large(tmp_path):
    assert "4194304" in _bad(tmp_path, b"x" * (5 << 20))


def test_a_large_but_good_one(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GOOD | {"words": "x" * (3 << 20)}))
    assert geometry.load(str(tmp_path)).hidden_size == 256


def test_deep_but_good(tmp_path):
    nested: dict = {}
    for _ in range(200):
        nested = {"a": nested}
    (tmp_path / "config.json").write_text(json.dumps(GOOD | {"rope": nested}))
    assert geometry.load(str(tmp_path)).hidden_size == 256


def test_text_config(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "outer", "text_config": GOOD | {"model_type": "m"}})
    )
    assert geometry.load(str(tmp_path)).model_type == "m"
    assert "hidden_size" in _bad(tmp_path, json.dumps({"text_config": {}} | GOOD))
    assert "hidden_size" in _bad(tmp_path, json.dumps({"text_config": GOOD | {"hidden_size": "256"}}))
    (tmp_path / "config.json").write_text(json.dumps(GOOD | {"text_config": None}))
    assert geometry.load(str(tmp_path)).hidden_size == 256


def test_a_folder_without_config(tmp_path):
    words = _complaint(tmp_path)
    assert str(tmp_path / "config.json") in words and "No such file" in words


def test_a_name_in_the_working_folder(tmp_path, monkeypatch):
    """`--geometry config.json` is called after its folder, not after nothing."""
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    monkeypatch.chdir(tmp_path)
    assert geometry.load("config.json").name == geometry.load(".").name == tmp_path.name


def test_no_such_file(tmp_path):
    assert str(tmp_path / "none.json") in _complaint(tmp_path / "none.json")


@pytest.mark.parametrize("name", ["deepseek-v4-flsh", "DEEPSEEK-V4-FLASH", "deepseek-v4-flash "])
def test_unknown_names_have_a_nearest(name):
    assert "nearest: deepseek-v4-flash" in _complaint(name)


@pytest.mark.parametrize("name", ["x" * 5000, "y/" * 3000, "x" * 300 + ".json", "a\0b.json"])
def test_names_that_no_file_system_takes(name):
    with pytest.raises(UsageError):
        geometry.load(name)


def test_a_device_is_not_read_for_ever():
    assert "/dev/zero" in _complaint("/dev/zero")


def test_a_pipe_is_read(tmp_path):
    """`--geometry <(make-config)`."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(json.dumps(GOOD)))
    writer.start()
    assert geometry.load(str(pipe)).hidden_size == 256
    writer.join()
