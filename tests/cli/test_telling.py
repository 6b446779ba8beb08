"""Commands that only tell, `--help`, and what importing the harness draws in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import __version__, catalogue
from conformance.faults.catalogue import FAULTS


@pytest.mark.parametrize(
    "command",
    ["", "gate", "selftest", "map", "report", "diff", "verify", "explain", "claims", "profiles", "stacks", "doctor"],
)
def test_help(conformance, command):
    done = conformance(*command.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: conformance ")
    assert len(done.out.splitlines()) > 5


def test_the_command_as_installed():
    command = Path(sys.executable).with_name("conformance")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


def test_version(conformance):
    assert conformance("--version") == (0, f"{__version__}\n", "")


def test_explain(conformance):
    """Source, need, file and the faults that it must catch."""
    done = conformance("explain", "loader.w2.offsets")
    assert done.code == 0
    for words in ("TP3 audit", "needs plan.axes", "suites.loader.test_w2:offsets", "gate --claim loader.w2.offsets"):
        assert words in done.out
    for fault in FAULTS.values():
        assert (f"catches   {fault.id}:" in done.out) == ("loader.w2.offsets" in fault.claims)


def test_claims(conformance):
    told = [line.split()[0] for line in conformance("claims").out.splitlines()]
    assert told == list(catalogue.claims())
    loader = [line.split()[0] for line in conformance("claims", "--layer", "loader").out.splitlines()]
    assert loader == [name for name in told if name.startswith("loader.")]


def test_profiles_and_stacks(conformance):
    lines = conformance("profiles").out.splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["cpu", "sm100", "sm103", "sm120", "sm121", "sm90"]
    assert sum("<- here" in line for line in lines) == 1
    assert "capability 12.0" in lines[3]
    assert {"reference", "vllm"} <= {line.split()[0] for line in conformance("stacks").out.splitlines()}


@pytest.mark.parametrize(
    "modules",
    ["conformance", "conformance.cli", "conformance.gate.settings, conformance.gate.verdict, conformance.catalogue"],
)
def test_importing_draws_in_neither_torch_nor_a_stack(modules):
    script = f"import sys, {modules}; print(sorted({{'torch', 'vllm', 'numpy', 'ray'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_closed_pipe_is_no_no_go():
    """`conformance claims | true`: quiet, and not exit code 1."""
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-c", "from conformance.cli import main; main()", "claims"]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (3, b"")
