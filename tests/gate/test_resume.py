"""`--resume`: the same verdict as an unbroken run, and a refusal wherever it would be another run."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest

from conformance.errors import UsageError
from conformance.gate import folder
from conformance.gate.gate import run_gate
from conformance.result import Evidence
from tests.gate import fakes
from tests.gate.fakes import FakeStack, claim, install, resolved

CLAIMS = [
    claim("plan.a"),
    claim("plan.axes.b", check="fails", group="plan.axes"),
    claim("loader.c", group="loader.moe"),
    claim("loader.d", check="acts"),
    claim("quant.e", check=""),
    claim("moe.tp3.reference"),
]
NEEDS = {"loader.moe": ("plan.axes",)}


@pytest.fixture
def gate(monkeypatch, tmp_path):
    """Runs the gate; every run stack is new, and `ran` collects the claims whose check `acts` ran."""
    ran: list[str] = []
    monkeypatch.setattr(folder, "harness_commit", lambda: "c0ffee")

    def acts(stack, context):
        ran.append("loader.d")
        return Evidence(ok=True, summary="right")

    def run(name="run", identity="1", version="1.0", **settings):
        monkeypatch.setattr(fakes, "acts", acts, raising=False)
        stack = FakeStack(identity=identity)
        info = stack.info
        stack.info = lambda: msgspec.structs.replace(info(), version=version)
        install(monkeypatch, CLAIMS, NEEDS, {"fake": stack, "other": FakeStack("other"), "reference": None})
        ran.clear()
        verdict, path = run_gate(resolved(run_dir=str(tmp_path / name), **settings))
        return verdict, path, list(ran)

    return run


def _plain(verdict) -> dict:
    told = json.loads(msgspec.json.encode(verdict))
    for each in told["claims"]:
        each["seconds"] = 0
    return told


@pytest.mark.parametrize("lines", range(len(CLAIMS) + 1))
def test_the_same_verdict_wherever_it_broke(gate, tmp_path, lines):
    whole, path, _ = gate("whole")
    evidence = (path / "evidence.jsonl").read_bytes().splitlines(keepends=True)
    broken = tmp_path / "broken"
    broken.mkdir()
    shutil.copy(path / "manifest.json", broken)
    (broken / "evidence.jsonl").write_bytes(b"".join(evidence[:lines]) + (b'{"id' if lines < len(evidence) else b""))
    resumed, _, ran = gate("broken", resume=True)
    assert _plain(resumed) == _plain(whole)
    assert ran == (["loader.d"] if lines <= 3 else [])
    assert whole.verdict == "NO-GO"
    assert {r.id: str(r.status) for r in whole.claims} == {
        "plan.a": "pass",
        "plan.axes.b": "fail",
        "loader.c": "blocked",
        "loader.d": "pass",
        "quant.e": "not-run",
        "moe.tp3.reference": "pass",
    }


def test_what_was_not_measured_is_tried_again(gate, tmp_path):
    gate()
    lines = (tmp_path / "run/evidence.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    for each in told:
        if each["id"] in ("plan.a", "loader.d"):
            each["status"] = "timeout"
    (tmp_path / "run/evidence.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))
    verdict, _, ran = gate(resume=True)
    assert ran == ["loader.d"]
    assert [str(r.status) for r in verdict.claims if r.id in ("plan.a", "loader.d")] == ["pass", "pass"]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"geometry": "gpt-oss-120b"}, "geometry"),
        ({"tp": "4"}, "tp"),
        ({"backend": "marlin"}, "backend"),
        ({"policy": "audit"}, "policy"),
        ({"stack": "other"}, "stack"),
        ({"stack": "fake,loader=other"}, "stack"),
        ({"layers": "plan"}, "layers"),
        ({"repair": "w2-units"}, "repair"),
        ({"force_shard": True}, "force_shard"),
        ({"no_gate": True}, "no_gate"),
        ({"vllm_source": "/tmp"}, "vllm_source"),
        ({"emulate": "sm120", "stack": "reference"}, "emulate"),
    ],
)
def test_changed_settings_are_refused(gate, changed, word):
    gate()
    with pytest.raises(UsageError, match=rf"^--resume: {word} was .* in that run and is .* now$"):
        gate(resume=True, **changed)


def test_a_config_that_changed_under_its_name_is_refused(gate, tmp_path):
    from conformance import geometry

    path = tmp_path / "config.json"
    config = geometry.load("deepseek-v4-tiny").config
    path.write_text(json.dumps(config))
    gate(geometry=str(path))
    gate(geometry=str(path), resume=True)
    path.write_text(json.dumps(config | {"hidden_size": 512}))
    with pytest.raises(UsageError, match=r"^--resume: geometry_sha256 was "):
        gate(geometry=str(path), resume=True)


@pytest.mark.parametrize("kept", [2, None])
@pytest.mark.parametrize("other", [{"identity": "2"}, {"version": "1.1"}])
def test_another_stack_is_refused(gate, tmp_path, other, kept):
    """Before anything runs, also where the broken run had measured everything."""
    gate()
    evidence = tmp_path / "run/evidence.jsonl"
    if kept is not None:
        evidence.write_bytes(b"".join(evidence.read_bytes().splitlines(keepends=True)[:kept]))
    before = evidence.read_bytes()
    with pytest.raises(UsageError, match="stack fake has changed since the run began"):
        gate(resume=True, **other)
    assert evidence.read_bytes() == before


def test_another_harness_is_refused(gate, monkeypatch):
    gate()
    monkeypatch.setattr(folder, "harness_commit", lambda: "c0ffee+1234")
    with pytest.raises(UsageError, match="the harness itself has changed"):
        gate(resume=True)


def test_the_commit_tells_uncommitted_changes_apart(monkeypatch):
    answers = {"rev-parse": "abc\n", "diff": ""}

    class Done:
        returncode = 0

        def __init__(self, words, text=False, **_):
            answer = answers[words[3]]
            self.stdout = answer if text else answer.encode()

    monkeypatch.setattr(folder.subprocess, "run", lambda words, **more: Done(words, **more))
    clean = folder.harness_commit()
    found = {clean}
    for changes in ("-a\n+b\n", "-a\n+c\n"):
        answers["diff"] = changes
        found.add(folder.harness_commit())
    assert clean == "abc"
    assert len(found) == 3 and all(commit.startswith("abc") for commit in found)
