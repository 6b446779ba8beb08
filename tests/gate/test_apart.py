"""An installed plug-in runs in a process of its own: whatever it does there costs a claim, and never the gate."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import TREE, catalogue
from conformance.errors import StackCrashed
from conformance.faults import selftest
from conformance.gate import apart
from conformance.gate.runner import Runner
from conformance.gate.settings import Settings, resolve
from conformance.result import Status
from conformance.stacks import registry
from conformance.stacks.protocols import StackOptions
from tests.stacks.test_process import gone

PLUGIN = '''
import os, signal, time
from pathlib import Path
from conformance.stacks.protocols import StackInfo
from conformance.stacks.reference import ReferenceLoader, ReferencePlanner

def open_stack(options):
    if os.environ.get("ROGUE") == "opening":
        os._exit(0)
    return Rogue()

class Rogue:
    name = "rogue"

    def info(self):
        Path(os.environ["ROGUE_PIDS"]).open("a").write(f"{os.getpid()}\\n")
        return StackInfo("rogue", "rogue", "1")

    def planner(self):
        return self

    def loader(self):
        """The selftest asks once for the clean stack, and once more for each fault."""
        self.asked = getattr(self, "asked", 0) + 1
        once = Path(os.environ["ROGUE_PIDS"] + ".once")
        if os.environ["ROGUE"] == "planted" and self.asked == 2 and not once.exists():
            once.touch()
            os._exit(0)
        return ReferenceLoader(128, 128)

    def plan(self, request):
        """Misbehaves once."""
        once = Path(os.environ["ROGUE_PIDS"] + ".once")
        if os.environ["ROGUE"] != "planted" and not once.exists():
            once.touch()
            match os.environ["ROGUE"]:
                case "exits":
                    os._exit(0)
                case "hangs":
                    time.sleep(600)
                case "segfault":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "leaves":
                    raise SystemExit(0)
        return ReferencePlanner().plan(request)

    def close(self):
        pass
'''


@pytest.fixture
def rogue(tmp_path, monkeypatch) -> Iterator[Path]:
    """The plug-in, installed; the file of the processes that it ran in."""
    folder = tmp_path / "installed"
    info = folder / "rogue_stack-1.dist-info"
    info.mkdir(parents=True)
    (folder / "rogue_stack.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rogue-stack\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[conformance.stacks]\nrogue = rogue_stack:open_stack\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(TREE)]))
    monkeypatch.setenv("ROGUE_PIDS", str(tmp_path / "pids"))
    registry._known.cache_clear()
    yield tmp_path / "pids"
    registry._known.cache_clear()


def _pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def _run(*claims: str, **settings):
    given = {"profile": "cpu", "geometry": "deepseek-v4-tiny", "stack": "rogue", "layers": "plan,loader"} | settings
    runner = Runner(resolve(Settings(**given)), lambda result: None)
    try:
        return [runner.run_claim(catalogue.get(name)) for name in claims]
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("exits", Status.CRASH, "the rogue worker died in judge: exit 0"),
        ("segfault", Status.CRASH, "SIGSEGV"),
        ("leaves", Status.ERROR, "SystemExit: 0"),
        ("hangs", Status.TIMEOUT, "rogue did not answer judge in 3 s and was ended"),
    ],
)
def test_it_costs_one_claim(rogue, monkeypatch, how, status, words):
    monkeypatch.setenv("ROGUE", how)
    monkeypatch.setattr(apart, "CLAIM_SECONDS", 3.0)
    first, second = _run("plan.axes.heads", "plan.axes.vocab")
    assert first.status is status and words in first.reason
    assert second.status is Status.PASS
    assert gone(_pids(rogue))


def test_the_gate_does_not_end_with_it(rogue, monkeypatch, tmp_path):
    """The real command: exit code 1, although the plug-in left with 0."""
    monkeypatch.setenv("ROGUE", "exits")
    words = ["gate", "--profile", "cpu", "--geometry", "deepseek-v4-tiny", "--stack", "rogue", "--layers", "plan"]
    command = [sys.executable, "-m", "conformance", *words, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "NO-GO (scope: plan)"
    assert "crash" in done.stdout and "the rogue worker died in judge: exit 0" in done.stdout


def test_a_stack_that_dies_when_it_is_opened_is_not_judged(rogue, monkeypatch):
    monkeypatch.setenv("ROGUE", "opening")
    (found,) = _run("plan.axes.heads")
    assert found.status is Status.ERROR
    assert "before any claim: the rogue worker died in open: exit 0" in found.reason


def test_evidence_and_maps_come_through(rogue, monkeypatch):
    """One process judges plan and loader, and its evidence is the same as here."""
    monkeypatch.setenv("ROGUE", "")
    found = _run("plan.axes.heads", "loader.w2.offsets", "loader.w2.tails")
    assert [result.status for result in found] == [Status.PASS] * 3
    assert len(found[1].evidence.maps) == 3
    assert found[1].evidence.stack == "rogue"
    assert len(set(_pids(rogue))) == 1 and os.getpid() not in _pids(rogue)


def test_a_wrong_call_stays_one(rogue, monkeypatch, tmp_path):
    from conformance.errors import UsageError

    monkeypatch.setenv("ROGUE", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    with pytest.raises(UsageError, match="nowhere: no readable evidence"):
        _run("moe.tails.zero", stack="plan=rogue,loader=rogue,moe=reference", layers="moe", loader_run="nowhere")


@pytest.mark.parametrize(("name", "foreign"), [("reference", False), ("vllm", False), ("flashinfer", True)])
def test_whose_code_is_foreign(name, foreign):
    assert registry.is_foreign(name) is foreign


def test_an_installed_plug_in_is(rogue):
    assert registry.is_foreign("rogue") and not registry.is_foreign("nobody")


def test_in_the_selftest_it_costs_one_fault(rogue, monkeypatch):
    monkeypatch.setenv("ROGUE", "planted")
    report = selftest.run("rogue", StackOptions(), ["half-fix", "floor-division"], None)
    first, second = report.faults
    assert (first.outcome, "the rogue worker died in plant: exit 0" in first.reason) == ("not planted", True)
    assert second.outcome == "caught" and report.clean == {} and report.exit_code == 3


def test_in_the_selftest_a_clean_run_that_ends_the_process_proves_nothing(rogue, monkeypatch):
    monkeypatch.setenv("ROGUE", "exits")
    with pytest.raises(StackCrashed, match="died in open"):
        selftest.run("rogue", StackOptions(), ["plan-refused"], None)
