"""`conformance map`: the audit's table for DeepSeek-V4-Flash at TP3, right and wrong, as text, SVG and JSON."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest

from conformance import geometry
from conformance.faults.catalogue import FAULTS
from conformance.faults.seams import FaultyLoader
from conformance.stacks import registry
from conformance.stacks.reference import ReferenceStack

#: parameter -> rows of (rank, checkpoint, destination, tail); W13 has them for each half
RIGHT = {
    "w13_weight": [(0, 0, 704, 64), (1, 704, 1408, 64), (2, 1408, 2048, 128)],
    "w13_weight_scale": [(0, 0, 704, 64), (1, 704, 1408, 64), (2, 1408, 2048, 128)],
    "w2_weight": [(0, 0, 352, 32), (1, 352, 704, 32), (2, 704, 1024, 64)],
    "w2_weight_scale": [(0, 0, 22, 2), (1, 22, 44, 2), (2, 44, 64, 4)],
}


class _Blind(ReferenceStack):
    def loader(self):
        return FaultyLoader(super().loader(), FAULTS["w2-unit-blind"].loader)


@pytest.fixture
def words(monkeypatch, tmp_path):
    """Thin: hidden size and experts only cost time."""
    config = geometry.load("deepseek-v4-flash").config
    thin = config | {"hidden_size": 256, "n_routed_experts": 2, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(thin))
    known = {n: SimpleNamespace(load=lambda s=s: s) for n, s in (("reference", ReferenceStack), ("blind", _Blind))}
    monkeypatch.setattr(registry, "_known", lambda: known)
    return ["--backend", "flashinfer_cutlass", "--profile", "cpu", "--geometry", str(tmp_path / "config.json")]


def _table(out: str) -> list[tuple[int, ...]]:
    """(rank, first, last, tail) of each row that has one source and one tail."""
    row = r"^ +(\d) +\[(\d+), (\d+)\) +\[0, (\d+)\) +(?:(\d+) zero)?"
    found = [[int(n or 0) for n in match] for match in re.findall(row, out, re.MULTILINE)]
    assert all(stop - start == size for _, start, stop, size, _ in found)
    return [(rank, start, stop, tail) for rank, start, stop, _, tail in found]


@pytest.mark.parametrize("parameter", RIGHT)
def test_right(conformance, words, parameter):
    done = conformance("map", parameter, *words)
    assert (done.code, done.err) == (0, "")
    assert _table(done.out) == RIGHT[parameter] * (2 if parameter.startswith("w13") else 1)
    unit = {"w13": "rows", "w2_": "bytes"}[parameter[:3]] if parameter != "w2_weight_scale" else "groups"
    assert f"in {parameter}, in {unit}" in done.out


def test_wrong(conformance, words):
    done = conformance("map", "w2_weight", "--stack", "blind", *words)
    assert done.code == 0
    assert _table(done.out) == [(0, 0, 384, 0), (1, 384, 768, 0), (2, 768, 1024, 128)]
    bars = [line.split()[-1] for line in done.out.splitlines() if line.startswith("rank ")]
    assert re.fullmatch("0+1+", bars[0]) and re.fullmatch("1+2+", bars[1]) and re.fullmatch("2+·+", bars[2])


def test_svg(conformance, words, tmp_path):
    conformance("map", "w2_weight", *words, "--svg", "map.svg")
    drawn = ET.parse(tmp_path / "map.svg").getroot()
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert "w2 [352, 704), due on rank 1" in titles
    assert not [e for e in drawn.iter() if e.tag.endswith(("script", "image", "a"))]


def test_json(conformance, words):
    told = json.loads(conformance("map", "w2_weight", *words, "--json", "-").out)
    assert [m["rank"] for m in told] == [0, 1, 2]
    assert [m["shape"] for m in told] == [[2, 256, 384]] * 3
    assert [m["boxes"][0]["origin"] for m in told] == [["w2", 0, 0, 0], ["w2", 0, 0, 352], ["w2", 0, 0, 704]]


def test_svg_that_cannot_be_written(conformance, words):
    done = conformance("map", "w2_weight", *words, "--svg", "none/map.svg")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "--svg none/map.svg: not writable" in done.err
