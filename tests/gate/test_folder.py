"""The run folder: what is refused, what survives, what is read back."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from conformance.errors import UsageError
from conformance.gate import folder
from conformance.gate.folder import RunFolder, read_evidence
from conformance.gate.gate import run_gate
from conformance.gate.settings import Settings, resolve
from conformance.result import Evidence, Status
from tests.gate.fakes import claim, install, resolved, result


@pytest.fixture
def run(monkeypatch):
    install(monkeypatch, [claim("plan.a"), claim("loader.b")])
    monkeypatch.setattr(folder, "harness_commit", lambda: "c0ffee")
    return resolved()


def _refused(run, path: Path, resume: bool = False) -> str:
    with pytest.raises(UsageError) as caught:
        RunFolder(run, path, resume)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def _written(run, path: Path, *results) -> Path:
    made = RunFolder(run, path, False)
    for each in results:
        made.record(each)
    made.close()
    return path / "evidence.jsonl"


def test_each_claim_is_on_the_disk_before_the_next_begins(run, tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_size), real(fd)))
    made = RunFolder(run, tmp_path, False)
    for number in range(3):
        made.record(result(Status.PASS, name=f"plan.{number}"))
        lines = (tmp_path / "evidence.jsonl").read_bytes().splitlines(keepends=True)
        assert len(lines) == number + 1
        assert synced[-1] == sum(map(len, lines))
    made.close()


def test_evidence_comes_back_as_it_was(run, tmp_path):
    results = [
        result(
            Status.FAIL, reason="wrong", evidence=Evidence(ok=False, summary="s", measured={"rank 0": [1, 2.5, None]})
        ),
        result(Status.NOT_RUN, required=False, name="loader.b", repeat="conformance gate"),
    ]
    _written(run, tmp_path, *results)
    assert read_evidence(tmp_path) == results


def test_the_last_result_of_a_claim_counts(run, tmp_path):
    _written(run, tmp_path, result(Status.ERROR), result(Status.PASS, name="loader.b"), result(Status.PASS))
    assert {r.id: str(r.status) for r in read_evidence(tmp_path)} == {"plan.a": "pass", "loader.b": "pass"}


@pytest.mark.parametrize("place", ["file/run", "file", "/proc/run", "/proc/self/fd/run"])
def test_not_writable(run, tmp_path, place):
    (tmp_path / "file").write_text("")
    path = Path(place) if place.startswith("/") else tmp_path / place
    assert f"--run-dir {path}: not writable" in _refused(run, path)


def test_already_used(run, tmp_path):
    _written(run, tmp_path, result(Status.PASS))
    assert "already holds a run; add --resume" in _refused(run, tmp_path)


def test_nothing_to_resume(run, tmp_path):
    """And the folder that does not exist is not made."""
    assert "holds no run to go on with" in _refused(run, tmp_path / "none", resume=True)
    assert "holds no run to go on with" in _refused(run, tmp_path, resume=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resume", [False, True])
def test_another_run_is_using_it(run, tmp_path, resume):
    made = RunFolder(run, tmp_path, False)
    assert "another run is using it" in _refused(run, tmp_path, resume)
    made.close()
    RunFolder(run, tmp_path, True).close()


def test_another_process_is_using_it(run, tmp_path):
    evidence = _written(run, tmp_path, result(Status.PASS))
    holder = subprocess.Popen(["flock", str(evidence), "sleep", "60"])
    try:
        with evidence.open() as probe:
            for _ in range(200):
                try:
                    fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.flock(probe, fcntl.LOCK_UN)
                except OSError:
                    break
                subprocess.run(["sleep", "0.01"], check=True)
        assert "another run is using it" in _refused(run, tmp_path, resume=True)
    finally:
        holder.kill()
        holder.wait()


def test_a_line_cut_off_anywhere_is_left_out(run, tmp_path):
    evidence = _written(run, tmp_path, result(Status.PASS), result(Status.FAIL, name="loader.b", reason="é"))
    whole = evidence.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        evidence.write_bytes(whole[:cut])
        assert [r.id for r in read_evidence(tmp_path)] == ["plan.a"]
    again = RunFolder(run, tmp_path, True)
    assert set(again.known) == {"plan.a"}
    again.record(result(Status.PASS, name="loader.b"))
    again.close()
    assert [r.id for r in read_evidence(tmp_path)] == ["plan.a", "loader.b"]


def test_nothing_but_a_cut_off_line(run, tmp_path):
    evidence = _written(run, tmp_path)
    evidence.write_bytes(b'{"id": "pl')
    again = RunFolder(run, tmp_path, True)
    again.record(result(Status.PASS))
    again.close()
    assert [r.id for r in read_evidence(tmp_path)] == ["plan.a"]


@pytest.mark.parametrize("line", [b"", b"garbage", b"\xff\xfe", b'{"id": "plan.a"}', b'{"id": 3}', b"[]", b"\x00" * 40])
def test_a_line_that_is_none_in_the_middle(run, tmp_path, line):
    evidence = _written(run, tmp_path, result(Status.PASS), result(Status.PASS, name="loader.b"))
    first, second = evidence.read_bytes().splitlines(keepends=True)
    evidence.write_bytes(first + line + b"\n" + second)
    words = _refused(run, tmp_path, resume=True)
    assert f"{evidence}:2: " in words


@pytest.mark.parametrize("text", ["", "{", "[]", '{"harness": 1}'])
def test_an_unreadable_manifest(run, tmp_path, text):
    _written(run, tmp_path, result(Status.PASS))
    (tmp_path / "manifest.json").write_text(text)
    assert "not a readable manifest" in _refused(run, tmp_path, resume=True)


def test_only_what_was_measured_is_known(run, tmp_path):
    _written(run, tmp_path, *(result(s, name=f"plan.{s}") for s in Status))
    again = RunFolder(run, tmp_path, True)
    again.close()
    kept = {"plan.pass", "plan.fail", "plan.not-applicable"}
    assert set(again.known) == kept


def test_files_are_written_whole_or_not_at_all(run, tmp_path, monkeypatch):
    made = RunFolder(run, tmp_path, False)
    made.write("verdict.json", b"first")

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError):
        made.write("verdict.json", b"second")
    monkeypatch.undo()
    assert (tmp_path / "verdict.json").read_bytes() == b"first"
    made.close()


def test_the_manifest_says_what_another_needs(run, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    _written(run, tmp_path)
    told = msgspec.json.decode((tmp_path / "manifest.json").read_bytes())
    assert told["harness_commit"] == "c0ffee"
    assert told["seed"] == run.target.seed
    assert told["settings"]["profile"] == "cpu" and told["settings"]["geometry"] == "deepseek-v4-tiny"
    assert told["environment"]["NCCL_DEBUG"] == "INFO"
    assert "SECRET_TOKEN" not in told["environment"]
    assert told["packages"]["torch"]


def test_a_refused_run_leaves_nothing_in_the_way(tmp_path):
    folder = tmp_path / "run"
    settings = {"stack": "vllm", "profile": "cpu", "layers": "plan", "run_dir": str(folder)}
    with pytest.raises(UsageError, match="--vllm-python"):
        run_gate(resolve(Settings(vllm_python=str(tmp_path / "none"), **settings)))
    assert not folder.exists()
