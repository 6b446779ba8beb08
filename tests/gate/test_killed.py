"""SIGKILL in the middle of a real run: what was finished is kept, and --resume comes to the same verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance import TREE
from conformance.gate.folder import read_evidence
from conformance.gate.schedule import planned
from conformance.gate.settings import Settings, resolve
from tests.cli.calls import call

GATE = ["gate", "--emulate", "sm120", "--geometry", "deepseek-v4-tiny", "--layers", "plan,loader"]
IDS = [c.id for c in planned(resolve(Settings(emulate="sm120", geometry="deepseek-v4-tiny", layers="plan,loader")))]


@pytest.fixture(autouse=True)
def _git(monkeypatch, tmp_path):
    """The clone's commit as a constant: others may commit to it while this test runs."""
    (tmp_path / "bin").mkdir()
    git = tmp_path / "bin" / "git"
    git.write_text('#!/bin/sh\ncase "$*" in *rev-parse*) echo c0ffee;; esac\n')
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{git.parent}:{os.environ['PATH']}")


def _verdict(path: Path) -> dict:
    told = json.loads((path / "verdict.json").read_text())
    for claim in told["claims"]:
        claim["seconds"] = 0
    return told


def _resumes_to_the_whole(monkeypatch, capsys, tmp_path) -> None:
    whole = call(monkeypatch, capsys, *GATE, "--run-dir", str(tmp_path / "whole"))
    resumed = call(monkeypatch, capsys, *GATE, "--run-dir", str(tmp_path / "run"), "--resume")
    assert (resumed.code, resumed.out.splitlines()[-1]) == (whole.code, whole.out.splitlines()[-1])
    assert whole.code == 0
    assert _verdict(tmp_path / "run") == _verdict(tmp_path / "whole")


def test_a_check_that_kills_the_process(monkeypatch, capsys, tmp_path):
    run, deadly = tmp_path / "run", "loader.w2.tails"
    words = [sys.executable, "-m", "tests.gate.dying", deadly, *GATE, "--run-dir", str(run)]
    died = subprocess.run(words, cwd=TREE, capture_output=True, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    found = {r.id: str(r.status) for r in read_evidence(run)}
    assert list(found) == IDS[: IDS.index(deadly)]
    assert all(status == "not-applicable" if "files" in name else status == "pass" for name, status in found.items())
    assert not (run / "verdict.json").exists()
    _resumes_to_the_whole(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("after", [0.0, 0.1])
def test_a_kill_from_outside(monkeypatch, capsys, tmp_path, after):
    """Some time after the first claim is on the disk."""
    run = tmp_path / "run"
    command = [Path(sys.executable).with_name("conformance"), *GATE, "--run-dir", run]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    evidence, deadline = run / "evidence.jsonl", time.monotonic() + 60
    while not (evidence.exists() and evidence.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(after)
    started.kill()
    started.wait()
    lines = evidence.read_bytes().split(b"\n")
    assert [json.loads(line)["id"] for line in lines[:-1]] == IDS[: len(lines) - 1]
    _resumes_to_the_whole(monkeypatch, capsys, tmp_path)
    assert [r.id for r in read_evidence(run)] == IDS


def test_a_corrupt_line_in_the_middle_is_a_wrong_call(monkeypatch, capsys, tmp_path):
    run = tmp_path / "run"
    call(monkeypatch, capsys, *GATE, "--run-dir", str(run))
    lines = (run / "evidence.jsonl").read_bytes().splitlines(keepends=True)
    lines[7] = lines[7][:20] + b"\n"
    (run / "evidence.jsonl").write_bytes(b"".join(lines))
    again = call(monkeypatch, capsys, *GATE, "--run-dir", str(run), "--resume")
    assert (again.code, len(again.err.splitlines())) == (2, 1)
    assert f"{run}/evidence.jsonl:8: " in again.err
