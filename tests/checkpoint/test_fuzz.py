"""Mutated files: a UsageError of one line, or a reading that is right by the safetensors library's own."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from conformance.checkpoint import folder as folders
from conformance.checkpoint import header
from conformance.errors import UsageError
from tests.checkpoint.files import folder, packed, simple

GOOD = packed(json.dumps(simple("a", "b", "c") | {"__metadata__": {"format": "pt"}}).encode(), bytes(range(12)))
_SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_JSON = st.recursive(_SCALAR, lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(max_size=6), i, max_size=3))
_NUMBER = st.integers(0, 16) | st.sampled_from([-1, 1 << 31, 1 << 53, 1 << 64, True, 2.0, float("nan")])
_ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "I8", "BF16", "F4", "F8_E4M3", "F64", "X", ""]) | _JSON,
        "shape": st.lists(_NUMBER, max_size=3) | _JSON,
        "data_offsets": st.tuples(_NUMBER, _NUMBER).map(list) | _JSON,
    }
)


def _holds(tmp_path, data: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    try:
        found = header.read(tmp_path, "x.safetensors")
    except UsageError as error:
        assert str(path) in str(error) and len(str(error).splitlines()) == 1 and len(str(error)) < 1500
        return
    with safe_open(path, framework="numpy") as file:
        assert sorted(file.keys()) == sorted(found)
        for name, entry in found.items():
            part = file.get_slice(name)
            assert (part.get_dtype(), tuple(part.get_shape())) == entry[:2]
    reached = 8 + int.from_bytes(data[:8], "little")
    for entry in sorted(found.values(), key=lambda e: (e.start, e.stop)):
        assert entry.start == reached
        reached = entry.stop
    assert reached == len(data)


@given(st.binary(max_size=300))
def test_any_bytes(tmp_path, data):
    _holds(tmp_path, data)


@given(st.binary(max_size=200))
def test_any_header(tmp_path, head):
    _holds(tmp_path, packed(b"{" + head, bytes(8)))


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(GOOD)))
def test_a_good_file_with_bytes_changed_and_its_end_cut(tmp_path, changes, length):
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    _holds(tmp_path, bytes(data[:length]) if changes == [] else bytes(data))


@given(st.dictionaries(st.sampled_from("abcd") | st.text(max_size=4), _ENTRY | _JSON, max_size=4), st.integers(0, 24))
def test_headers_of_the_right_form(tmp_path, entries, size):
    _holds(tmp_path, packed(json.dumps(entries).encode(), bytes(size)))


@given(
    st.permutations([4, 4, 0, 8]).flatmap(lambda sizes: st.tuples(st.just(sizes), st.permutations(range(4)))),
    st.integers(-1, 1),
)
def test_offsets_in_any_order(tmp_path, order, shift):
    """Tensors may lie in another order than they are named in; one byte off anywhere is refused."""
    sizes, names = order
    entries, at = {}, 0
    for n, size in zip(names, sizes, strict=True):
        entries[f"t{n}"] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    _holds(tmp_path, packed(json.dumps(entries).encode(), bytes(at + shift)))


@given(
    st.dictionaries(st.sampled_from(["metadata", "weight_map", "x"]), _JSON, max_size=3)
    | st.fixed_dictionaries(
        {
            "weight_map": st.dictionaries(
                st.sampled_from("abz"), st.sampled_from(["model.safetensors", "../x.safetensors", "y"]) | _JSON
            )
        }
    )
)
def test_any_index(tmp_path, index):
    path = folder(tmp_path / "m", index=index)
    try:
        assert set(folders.read(str(path)).entries) == {"a", "b"}
    except UsageError as error:
        assert str(path) in str(error) and len(str(error).splitlines()) == 1
