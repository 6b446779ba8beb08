"""Sessions of pytest over the clone's suites, in a process of their own or (faster) within this one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Protocol

import pytest

from conformance import TREE, catalogue
from conformance.catalogue import Claim
from conformance.gate import folder
from conformance.stacks import registry
from tests.pytest_plugin import fake_stacks

SUITES = str(TREE / "suites")
#: What every session here starts with: the clone's settings, no cache, and no plugin that costs a second to load.
_BASE = ["-c", str(TREE / "pyproject.toml"), "--rootdir", str(TREE), "-p", "no:cacheprovider"]
#: Garbage is not what these sessions are about, and collecting it beside torch takes most of their time.
_QUICK = ["-p", "no:unraisableexception", "-p", "no:threadexception"]
_TINY = ["--geometry", "deepseek-v4-tiny"]
_TARGETS = {opener.__name__: f"{fake_stacks.__name__}:{opener.__name__}" for opener in fake_stacks.OPENERS}


def with_check(*layers: str) -> list[str]:
    """Ids of the claims of these layers (all, if none is named) that this version can test, in schedule order."""
    return [c.id for c in catalogue.claims().values() if c.check and c.layer in (layers or catalogue.LAYERS)]


@dataclass
class Outcome:
    """How a session ended, and the folder that --run-dir named."""

    code: int
    text: str
    folder: Path

    @property
    def verdict(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "verdict.json").read_text())
        return found

    @property
    def statuses(self) -> dict[str, str]:
        return {claim["id"]: claim["status"] for claim in self.verdict["claims"]}

    def evidence(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "evidence.jsonl").read_text().splitlines()]


class Session(Protocol):
    def __call__(self, *arguments: str, tiny: bool = True, keep: bool = True) -> Outcome:
        """Run pytest. `tiny`: at the tiny geometry. `keep`: with --run-dir, which makes any session one of ours."""


@pytest.fixture(scope="session")
def loaded() -> None:
    """Before pytester notes which modules there are. It forgets what a session adds; and torch loads but once."""
    parts = ("provenance.measure", "report.attestation", "report.html", "report.junit", "gate.runner")
    own = ("local", "record", "scope", "summary")
    checks = {catalogue.get(claim).check.partition(":")[0] for claim in with_check()}
    for module in (
        "torch",
        *(f"conformance.{part}" for part in (*parts, *(f"pytest_plugin.{p}" for p in own))),
        *checks,
    ):
        importlib.import_module(module)


@pytest.fixture
def session(loaded: None, pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Within this process: the fake stacks are known, and the exit code is pytest.main's."""
    known = {name: EntryPoint(name, target, "conformance.stacks") for name, target in _TARGETS.items()}
    known |= registry._known()
    monkeypatch.setattr(registry, "_known", lambda: known)
    monkeypatch.setattr(folder, "harness_commit", lambda: "a commit")  # asks git twice, and changes while someone edits
    monkeypatch.setattr("hardware_profiles.found", lambda: (None, "no GPU"))

    def run(*arguments: str, tiny: bool = True, keep: bool = True) -> Outcome:
        words = _command(arguments, tmp_path, tiny, keep)
        result = pytester.runpytest_inprocess(*_QUICK, *words, no_reraise_ctrlc=True)
        return Outcome(int(result.ret), f"{result.stdout}\n{result.stderr}", tmp_path / "run")

    return run


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of one more claim of the layer `plan`, for which there is no check."""
    claim = Claim("plan.untested", "plan.untested", "Nobody can tell", "blocker", "nowhere")
    claims = {**catalogue.claims(), claim.id: claim}
    monkeypatch.setattr(catalogue, "claims", lambda: claims)
    return claim.id


@pytest.fixture(scope="session")
def entry_points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH that makes the fake stacks installed plug-ins."""
    folder = tmp_path_factory.mktemp("plugins")
    metadata = folder / "fake_stacks-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-stacks\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in _TARGETS.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[conformance.stacks]", *lines, ""]))
    return folder


@pytest.fixture
def process(entry_points: Path, tmp_path: Path) -> Session:
    """In a process of its own, as a person starts it; the exit code is the process's."""

    def run(*arguments: str, tiny: bool = True, keep: bool = True) -> Outcome:
        words = ["-p", "no:hypothesispytest", *_command(arguments, tmp_path, tiny, keep)]
        result = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=tmp_path,
            env=clean_environment(entry_points),
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Outcome(result.returncode, result.stdout + result.stderr, tmp_path / "run")

    return run


@pytest.fixture
def python_without_packages(tmp_path: Path) -> Path:
    """An interpreter that finds no vLLM, whatever is installed beside this one."""
    script = tmp_path / "bare-python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return script


def clean_environment(*path: Path) -> dict[str, str]:
    """Ours without what another pytest left in it, and with these folders (and the clone) on Python's path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, (*path, TREE)))}


def _command(arguments: tuple[str, ...], folder: Path, tiny: bool, keep: bool) -> list[str]:
    return [*_BASE, *(_TINY if tiny else ()), *(("--run-dir", str(folder / "run")) if keep else ()), *arguments]
