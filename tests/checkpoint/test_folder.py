"""Folders: the index against the files, links and paths out of the folder, a config.json that is none."""

from __future__ import annotations

import os

import pytest
from safetensors import safe_open

from conformance.checkpoint import folder as folders
from conformance.errors import UsageError
from references import checkpoint, make_checkpoint
from tests.checkpoint.files import folder, simple
from tests.geometry.test_bad_configs import GOOD

INDEX = "model.safetensors.index.json"
TWO = {"one.safetensors": simple("a"), "two.safetensors": simple("b")}
MAP = {"a": "one.safetensors", "b": "two.safetensors"}


def _refused(path) -> str:
    with pytest.raises(UsageError) as caught:
        folders.read(str(path))
    line = str(caught.value)
    assert len(line.splitlines()) == 1 and len(line) < 1000
    return line


def test_a_made_checkpoint_reads_as_the_library_reads_it(tmp_path):
    make_checkpoint.write(tmp_path / "made", make_checkpoint.UNEVEN, files=3)
    found = folders.read(str(tmp_path / "made"))
    assert found.geometry.attention_heads == 16 and found.geometry.name == "made"
    due = checkpoint.tensors(make_checkpoint.UNEVEN)
    assert {name: (e.dtype, e.shape) for name, e in found.entries.items()} == {n: t[:2] for n, t in due.items()}
    for name, entry in found.entries.items():
        with safe_open(tmp_path / "made" / entry.file, framework="pt") as file:
            part = file.get_slice(name)
            assert (part.get_dtype(), tuple(part.get_shape())) == entry[:2]
    assert found.size == sum(e.stop - e.start for e in found.entries.values()) > 1 << 20


def test_one_file_needs_no_index(tmp_path):
    assert list(folders.read(str(folder(tmp_path / "m"))).entries) == ["a", "b"]


def test_several_files_with_an_index_and_without(tmp_path):
    path = folder(tmp_path / "m", TWO, {"metadata": {"total_size": 8}, "weight_map": MAP})
    found = folders.read(str(path))
    assert {name: e.file for name, e in found.entries.items()} == MAP
    (path / INDEX).unlink()
    assert folders.read(str(path)).digest == found.digest


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": MAP | {"c": "three.safetensors"}}, "three.safetensors: not readable: No such file"),
        ({"weight_map": MAP | {"c": "two.safetensors"}}, f"{INDEX}: 'c': two.safetensors holds no such tensor"),
        ({"weight_map": {"a": "one.safetensors"}}, "two.safetensors: model.safetensors.index.json names no tensor"),
        ({"weight_map": {"b": "two.safetensors", "z": "one.safetensors"}}, "one.safetensors: 'a': "),
        ({"weight_map": MAP | {"a": "two.safetensors"}}, f"{INDEX}: 'a': two.safetensors holds no such tensor"),
        ({"weight_map": MAP | {"a": "../one.safetensors"}}, "'../one.safetensors': the plain name of a file in"),
        ({"weight_map": MAP | {"a": "/etc/one.safetensors"}}, "'/etc/one.safetensors': the plain name"),
        ({"weight_map": MAP | {"a": "sub/one.safetensors"}}, "'sub/one.safetensors': the plain name"),
        ({"weight_map": MAP | {"a": "x\0.safetensors"}}, "the plain name"),
        ({"weight_map": MAP | {"a": "one.bin"}}, "'a': is in 'one.bin'; the name of a .safetensors file"),
        ({"weight_map": MAP | {"a": 3}}, "'a': is in 3;"),
        ({"weight_map": MAP | {"a": "n" * 5000 + ".safetensors"}}, "'a': no JSON, or longer than 1024"),
        ({"weight_map": MAP | {"a": "n" * 999 + ".safetensors"}}, "the plain name"),
        ({"weight_map": []}, "'weight_map': an object was due"),
        ({"weight_map": {}}, "a checkpoint was due"),
        ({}, "'weight_map': is missing"),
        ([], "an object was due"),
        ("", "an object was due"),
        ({"metadata": {"total_size": 1.5}, "weight_map": MAP}, "'total_size': is 1.5"),
        ({"metadata": {"total_size": True}, "weight_map": MAP}, "'total_size': is True"),
        ('{"metadata": {"total_size": NaN}}', "'metadata': no JSON: NaN"),
        ({"metadata": 1, "weight_map": MAP}, "'metadata': is 1"),
        ({"weight_map": MAP, "more": 1}, "'more': an unknown key"),
        ('{"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}}', "'a': comes twice"),
    ],
)
def test_a_wrong_index(tmp_path, index, words):
    assert words in _refused(folder(tmp_path / "m", TWO, index))


def test_a_name_in_two_files(tmp_path):
    path = folder(tmp_path / "m", {"one.safetensors": simple("a"), "two.safetensors": simple("a")})
    assert "two.safetensors: 'a': is in one.safetensors as well" in _refused(path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", INDEX])
def test_links_out_of_the_folder(tmp_path, name):
    path = folder(tmp_path / "m", index={"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}})
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to("../elsewhere")
    line = _refused(path)
    assert str(path / name) in line and "a link out of the folder" in line


def test_links_that_stay_inside_and_links_in_a_circle(tmp_path):
    path = folder(tmp_path / "m")
    (path / "model.safetensors").rename(path / "blob")
    (path / "model.safetensors").symlink_to("blob")
    assert list(folders.read(str(path)).entries) == ["a", "b"]
    (path / "blob").unlink()
    (path / "blob").symlink_to("model.safetensors")
    assert "not readable" in _refused(path)


def test_pipes_and_folders_are_not_read(tmp_path):
    path = folder(tmp_path / "m")
    (path / "model.safetensors").unlink()
    os.mkfifo(path / "model.safetensors")
    assert "no regular file" in _refused(path)
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").mkdir()
    assert "no regular file" in _refused(path)


@pytest.mark.parametrize("value", [float("nan"), -1, 2.5, True, 1 << 60, "64", None, []])
def test_numbers_in_config_json(tmp_path, value):
    line = _refused(folder(tmp_path / "m", config=GOOD | {"hidden_size": value}))
    assert "config.json: " in line


def test_no_checkpoint_at_all(tmp_path):
    assert "no readable folder: No such file" in _refused(tmp_path / "none")
    (tmp_path / "file").touch()
    assert "no readable folder: Not a directory" in _refused(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert "config.json: not readable" in _refused(tmp_path / "empty")
    path = folder(tmp_path / "m")
    (path / "model.safetensors").unlink()
    assert "a checkpoint was due" in _refused(path)


def test_a_nul_in_the_path():
    assert "no readable folder" in _refused("a\0b")
