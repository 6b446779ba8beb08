"""`conformance fuzz`: exit codes, verdict line, wrong calls."""

from __future__ import annotations

import json

import pytest

from conformance.faults import loader as faults
from conformance.faults.seams import FaultyLoader
from conformance.fuzz import geometries, laws
from conformance.stacks import reference
from tests.cli.calls import call

FEW = ("fuzz", "--examples", "12")


@pytest.fixture
def conformance(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: call(monkeypatch, capsys, *words)


def test_the_reference_stack_holds(conformance, tmp_path):
    done = conformance(*FEW, "--backend", "cpu,flashinfer_cutlass", "--json", "f.json")
    assert done.code == 0, done.out
    assert done.out.splitlines()[-1] == "HOLDS (fuzz of stack reference; no part of a gate's verdict)"
    assert "references: every law holds at " in done.out
    report = json.loads((tmp_path / "f.json").read_text())
    assert report["verdict"] == "HOLDS" and report["counts"]["right"] > 40
    assert not (tmp_path / ".hypothesis").exists()


def test_a_broken_stack_is_told_with_its_smallest_geometry(conformance, monkeypatch):
    inner = reference.ReferenceStack.loader
    monkeypatch.setattr(
        reference.ReferenceStack, "loader", lambda self: FaultyLoader(inner(self), faults.floor_division)
    )
    done = conformance(*FEW, "--tp", "2")
    assert done.code == 1
    lines = done.out.splitlines()
    assert "smallest that breaks: intermediate 32 (1 scale groups) at TP2, cpu" in lines
    assert any("loader.w2_scale.partition: w2_weight_scale: w2 groups [0, 1) never loaded" in line for line in lines)
    assert any(
        line.startswith("also broken: intermediate 2080 (65 scale groups) at TP2, cpu: loader.w2_scale.partition")
        and "w2 groups [64, 65) never loaded" in line
        for line in lines
    )
    assert lines[-1].startswith("BROKEN (fuzz of stack reference")


def test_a_broken_law_is_told(conformance, monkeypatch):
    monkeypatch.setitem(laws.LAWS, "tails", lambda cut: "not at all" if cut.total >= 64 else "")
    done = conformance(*FEW, "--tp", "1")
    assert done.code == 1 and "references: tails: not at all at Cut(tp=1, total=64," in done.out


def test_a_stack_that_cannot_be_measured_is_incomplete(conformance, monkeypatch):
    monkeypatch.setattr(geometries, "_outcome", lambda seen: "unproved")
    done = conformance(*FEW, "--tp", "1")
    assert done.code == 3 and done.out.splitlines()[-1].startswith("INCOMPLETE (")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--stack vlm", "unknown stack 'vlm'; nearest: vllm"),
        ("--profile dv", "unknown fuzz profile 'dv'; nearest: dev"),
        ("--examples 0", "--examples is 0; 1 to 1000000 was due"),
        ("--tp 0", "--tp is '0'; a whole number from 1 to 64 was due"),
        ("--tp 2.0", "--tp is '2.0'"),
        ("--tp 100", "--tp is '100'"),
        ("--backend cup", "unknown backend 'cup'; nearest: cpu"),
    ],
)
def test_wrong_calls(conformance, words, line):
    done = conformance("fuzz", *words.split())
    assert done.code == 2 and line in done.err and len(done.err.splitlines()) == 1
