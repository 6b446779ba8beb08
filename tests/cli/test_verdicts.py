"""The gate as a command: last line, exit code, JSON, and what it launches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from conformance import errors
from conformance.faults.catalogue import FAULTS
from conformance.faults.seams import FaultyLoader
from conformance.stacks import registry
from conformance.stacks.reference import ReferenceStack
from tests.gate import fakes

HARNESS = "reference stack: this judges the harness, not a machine"
TINY = ["--geometry", "deepseek-v4-tiny", "--run-dir", "run"]


class _Other(ReferenceStack):
    """A right stack that is not ours, or one with a fault in it."""

    def __init__(self, options, name: str = "other", fault: str = ""):
        super().__init__(options)
        self.name, self._fault = name, fault

    def info(self):
        return msgspec.structs.replace(super().info(), name=self.name, subject=self.name)

    def loader(self):
        loader = super().loader()
        return FaultyLoader(loader, FAULTS[self._fault].loader) if self._fault else loader


@pytest.fixture(autouse=True)
def _stacks(monkeypatch):
    def missing(options):
        raise errors.StackMissing("vllm is not importable: pip install vllm")

    openers = {
        "reference": ReferenceStack,
        "other": _Other,
        "broken": lambda options: _Other(options, "broken", "floor-division"),
        "vllm": missing,
    }
    known = {n: SimpleNamespace(load=lambda o=o: o, value=n, dist=None) for n, o in openers.items()}
    monkeypatch.setattr(registry, "_known", lambda: known)


@pytest.mark.parametrize(
    ("words", "code", "headline"),
    [
        ("--profile cpu", 0, f"GO ({HARNESS})"),
        ("--emulate sm120 --layers plan", 0, f"GO ({HARNESS}; emulating sm120; scope: plan)"),
        ("--profile cpu --stack other --layers plan,loader", 0, "GO (scope: plan, loader)"),
        ("--profile cpu --stack other", 3, "INCOMPLETE"),
        ("--profile cpu --stack other --policy audit", 0, "GO (policy: audit)"),
        ("--profile cpu --stack broken", 1, "NO-GO"),
        ("--profile cpu --stack broken --layers loader", 1, "NO-GO (scope: loader)"),
        ("--profile sm120", 3, "INCOMPLETE"),
        ("--profile sm120 --policy audit", 3, "INCOMPLETE (policy: audit)"),
        ("--profile cpu --layers e2e", 0, f"GO ({HARNESS}; scope: e2e)"),
        ("--profile cpu --claim plan.accepted", 0, None),
    ],
)
def test_headline_and_exit_code(conformance, words, code, headline):
    done = conformance("gate", *words.split(), *TINY)
    assert done.code == code, done.out + done.err
    if headline:
        assert done.out.splitlines()[-1] == headline
    assert done.err == ""


def test_a_missing_stack_is_never_a_fallback(conformance):
    """INCOMPLETE, with what to install; not the reference stack's GO."""
    done = conformance("gate", "--profile", "sm120", *TINY)
    assert "pip install vllm" in done.out and "GO" not in done.out.split()
    told = json.loads(Path("run/verdict.json").read_text())
    assert told["subject"] == told["stack"] == "vllm"
    assert set(told["counts"]) == {"not-run", "not-applicable"}  # of --checkpoint, which is not given


@pytest.mark.parametrize("stack", ["reference", "broken"])
def test_json_on_stdout_is_json_alone(conformance, stack):
    done = conformance("gate", "--profile", "cpu", "--layers", "plan,loader", "--stack", stack, "--json", "-", *TINY)
    told = json.loads(done.out)
    assert told["verdict"] == ("GO" if stack == "reference" else "NO-GO")
    assert done.err.splitlines()[-1] == told["headline"]
    assert told == json.loads(Path("run/verdict.json").read_text())


def test_json_to_a_file(conformance, tmp_path):
    done = conformance("gate", "--profile", "cpu", "--layers", "plan", "--json", "out.json", *TINY)
    assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "GO"
    assert done.out.splitlines()[-1].startswith("GO")


@pytest.mark.parametrize("command", ["selftest --fault half-fix", "doctor"])
def test_json_of_other_commands(conformance, command):
    done = conformance(*command.split(), "--json", "-")
    assert json.loads(done.out)


def test_selftest_exit_codes(conformance, monkeypatch):
    assert conformance("selftest", "--fault", "half-fix").code == 0
    import suites.loader.test_w2

    monkeypatch.setattr(suites.loader.test_w2, "tails", fakes.passes)
    lives = conformance("selftest", "--fault", "half-fix")
    assert lives.code == 1
    assert (
        "half-fix" in lives.out and "alive" in lives.out and "loader.w2.tails (spared!)" in " ".join(lives.out.split())
    )
    missing = conformance("selftest", "--stack", "vllm", "--fault", "half-fix")
    assert (missing.code, missing.err) == (3, "conformance: vllm is not importable: pip install vllm\n")


def test_ctrl_c(conformance, monkeypatch):
    def interrupted(stack, context):
        raise KeyboardInterrupt

    monkeypatch.setattr("suites.plan.test_accepted.accepted", interrupted)
    done = conformance("gate", "--profile", "cpu", *TINY)
    assert (done.code, done.err.splitlines()) == (130, ["conformance: interrupted; --resume goes on with the run"])


def test_a_failure_of_the_harness_is_no_no_go(conformance, monkeypatch):
    """Python's own exit code for a traceback is 1, which means NO-GO here."""

    def full(self, result):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("conformance.gate.folder.RunFolder.record", full)
    done = conformance("gate", "--profile", "cpu", *TINY)
    assert done.code == 3
    assert done.err.splitlines()[-1] == (
        "conformance: the harness itself failed: OSError: [Errno 5] Input/output error"
    )
