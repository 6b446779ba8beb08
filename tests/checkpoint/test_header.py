"""Headers, good and hostile: a right reading, or one line that names file and key."""

from __future__ import annotations

import json

import pytest
from safetensors import SafetensorError, safe_open

from conformance.checkpoint import header
from conformance.errors import UsageError
from tests.checkpoint.files import header as made
from tests.checkpoint.files import packed, simple

ONE = {"dtype": "U8", "shape": [2, 2], "data_offsets": [0, 4]}


def _read(tmp_path, data: bytes, most: int = header.MOST_NAMES):
    (tmp_path / "x.safetensors").write_bytes(data)
    return header.read(tmp_path, "x.safetensors", most)


def _refused(tmp_path, data: bytes, most: int = header.MOST_NAMES) -> str:
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, data, most)
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / 'x.safetensors'}: ") and len(line.splitlines()) == 1 and len(line) < 1000
    return line


def test_a_good_one(tmp_path):
    entries = simple("a", "b") | {"__metadata__": {"format": "pt"}}
    head = made(entries) + b"   "
    found = _read(tmp_path, packed(head, bytes(8)))
    begin = 8 + len(head)
    assert found == {
        "a": ("U8", (2, 2), "x.safetensors", begin, begin + 4),
        "b": ("U8", (2, 2), "x.safetensors", begin + 4, begin + 8),
    }


@pytest.mark.parametrize("bits", ["F4", "BF16", "F8_E8M0", "I64"])
def test_sizes_of_types(tmp_path, bits):
    size = 6 * header.BITS[bits] // 8
    entry = {"dtype": bits, "shape": [3, 2], "data_offsets": [0, size]}
    assert _read(tmp_path, packed(made({"a": entry}), bytes(size)))["a"].shape == (3, 2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes; a safetensors file begins with 8"),
        (b"\x10\0\0", "3 bytes"),
        (b"garbage! and more of it", "a header of 2406443243860549991 bytes"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "a header of 9223372036854775808"),
        ((100).to_bytes(8, "little") + b"{}", "a header of 100 bytes in a file of 10"),
        (packed(b""), "no JSON object"),
        (packed(b"\0" * 40), "no JSON object"),
        (packed(b"[]"), "no JSON object"),
        (packed(b'{"a'), "no JSON"),
        (packed(b'{"a":'), "'a': no JSON"),
        (packed(b'{"\xff":1}'), "no UTF-8 at byte 2"),
        (packed(b"{} x"), "something follows"),
        (packed(b'{"a" 1}'), "'a': a colon was due"),
        (packed(b'{"a\\ud800":1}'), "a key of printable characters was due"),
        (packed(b'{"a":' + b"[" * 3000 + b"]" * 1000 + b"}"), "nested too deeply"),
        (packed(b'{"a":' + b"[" * 9000 + b"}"), "longer than 4096 characters"),
        (packed(b'{"a":' + b"1" * 9000 + b"}"), "longer than 4096 characters"),
        (packed(b'{"__metadata__":{"a":1}}'), "'__metadata__': an object of strings"),
    ],
)
def test_what_is_no_header(tmp_path, data, words):
    assert words in _refused(tmp_path, data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "F9"}, "dtype is 'F9'"),
        ({"dtype": 1}, "dtype is 1"),
        ({"dtype": ["U8"]}, "dtype is ['U8']"),
        ({"shape": [4.0]}, "shape is [4.0]"),
        ({"shape": [True, 4]}, "shape is [True, 4]"),
        ({"shape": [-2, -2]}, "shape is [-2, -2]"),
        ({"shape": [1 << 70, 0]}, "shape is [1180591620717411303424, 0]"),
        ({"shape": [1] * 99}, "at most 16 whole numbers"),
        ({"shape": "2"}, "shape is '2'"),
        ({"shape": None}, "shape is None"),
        ({"shape": [2, 3]}, "U8 of shape [2, 3] takes 6 bytes; data_offsets hold 4"),
        ({"dtype": "BF16"}, "BF16 of shape [2, 2] takes 8 bytes"),
        ({"dtype": "F4", "shape": [3]}, "12 bits, no whole bytes"),
        ({"data_offsets": [4, 0]}, "data_offsets is [4, 0]"),
        ({"data_offsets": [0, 4, 8]}, "data_offsets is [0, 4, 8]"),
        ({"data_offsets": [0, 4.0]}, "data_offsets is [0, 4.0]"),
        ({"data_offsets": [False, 4]}, "data_offsets is [False, 4]"),
        ({"data_offsets": [-4, 0]}, "data_offsets is [-4, 0]"),
        ({"data_offsets": [0, 40], "shape": [40]}, "data_offsets end at byte 40, the file holds 4 of data: truncated?"),
        ({"data_offsets": [0, 1 << 60], "shape": [1 << 60]}, "1152921504606846976"),
        ({"extra": 1}, "an object with dtype, shape and data_offsets was due"),
    ],
)
def test_a_wrong_field_is_named_with_its_tensor(tmp_path, change, words):
    line = _refused(tmp_path, packed(made({"a": ONE | change}), bytes(4)))
    assert "'a': " in line and words in line


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 5000])
def test_numbers_that_are_none(tmp_path, word):
    head = made({"a": ONE}).replace(b"[2, 2]", b"[" + word.encode() + b"]")
    assert "'a': " in _refused(tmp_path, packed(head, bytes(4)))


def test_holes_overlaps_and_what_is_left_over(tmp_path):
    entries = simple("a", "b", "c")
    entries["b"]["data_offsets"] = [2, 6]
    assert "'b': data_offsets begin at byte 2, overlaps 'a'" in _refused(tmp_path, packed(made(entries), bytes(12)))
    del entries["b"]
    assert "'c': data_offsets begin at byte 8, leaves a hole after 'a'" in _refused(
        tmp_path, packed(made(entries), bytes(12))
    )
    assert "'b': 3 bytes follow it" in _refused(tmp_path, packed(made(simple("a", "b")), bytes(11)))
    assert "'b': data_offsets end at byte 8, the file holds 7" in _refused(
        tmp_path, packed(made(simple("a", "b")), bytes(7))
    )


def test_a_name_twice(tmp_path):
    one = json.dumps(ONE)
    assert "'a': comes twice" in _refused(tmp_path, packed(f'{{"a":{one},"a":{one}}}'.encode(), bytes(4)))
    twice = '{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}'
    assert "'a': no JSON: 'dtype' comes twice" in _refused(tmp_path, packed(f'{{"a":{twice}}}'.encode(), bytes(4)))


def test_too_many_names(tmp_path):
    assert "'t3': more than 3 tensors" in _refused(
        tmp_path, packed(made(simple(*(f"t{n}" for n in range(9)))), bytes(36)), most=3
    )


@pytest.mark.parametrize(
    "head",
    [
        b'{"a":' + b"[" + b"[]," * 3_000_000 + b"[]]}",
        b"{" + b",".join(b'"%d":{}' % n for n in range(1_000_000)) + b"}",
        b'{"' + b"k" * 9_000_000 + b'":1}',
        b" " * 9_000_000,
    ],
)
def test_megabytes_of_nonsense_cost_little(tmp_path, head):
    """The first wrong member ends it: no list of millions is built."""
    import tracemalloc

    data = packed(head)
    tracemalloc.start()
    try:
        _refused(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(head) + (1 << 20)
    finally:
        tracemalloc.stop()


def test_the_library_refuses_what_it_can_see_too(tmp_path):
    """Not looser than the safetensors library in holes, overlaps and lengths."""
    entries = simple("a", "c")
    entries["c"]["data_offsets"] = [8, 12]
    path = tmp_path / "x.safetensors"
    path.write_bytes(packed(made(entries), bytes(12)))
    with pytest.raises(SafetensorError):
        safe_open(path, framework="numpy")
