"""Collecting: cheap, with markers, and faithful to the claims' data."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import hardware_profiles
from conformance import catalogue
from conformance.pytest_plugin import marks
from tests.pytest_plugin.conftest import SUITES, Session, clean_environment, with_check

pytest_plugins = ["pytester"]


def _asked_by(profile: str) -> list[str]:
    patterns = [pattern for must_pass in hardware_profiles.load(profile).must_pass for pattern in must_pass.claims]
    return [claim for claim in with_check() if any(fnmatchcase(claim, pattern) for pattern in patterns)]


_HEAVY = ("torch", "numpy", "vllm", "flashinfer", "ray", "conformance.stacks.reference", "conformance.stacks.vllm")


def test_collection_imports_nothing_heavy(tmp_path: Path) -> None:
    """Nor does it leave a folder behind. The thread count is set before a check loads torch."""
    call = ["--collect-only", "-q", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", SUITES]
    script = (
        f"import os, pytest, sys\ncode = pytest.main({call})\n"
        f"heavy = [name for name in {_HEAVY} if name in sys.modules]\n"
        "print('heavy:', heavy, int(code), os.environ['OMP_NUM_THREADS'])\n"
    )
    words = [sys.executable, "-c", script]
    environment = clean_environment()
    environment.pop("OMP_NUM_THREADS", None)
    result = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "heavy: [] 0 1" in result.stdout, result.stdout + result.stderr
    assert f"{len(with_check())} tests collected" in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "collected"),
    [
        (["-m", "plan"], with_check("plan")),
        (["-m", "loader and sm121"], with_check("loader")),
        (["-m", "quant"], with_check("quant")),
        (["-k", "loader.w2.tails"], ["loader.w2.tails"]),
        (["-m", 'claim(id="loader.w2.offsets")'], ["loader.w2.offsets"]),
        *((["-m", profile], _asked_by(profile)) for profile in hardware_profiles.names()),
    ],
)
def test_markers_select(session: Session, call: list[str], collected: list[str]) -> None:
    text = session(SUITES, "--collect-only", "-q", *call, tiny=False, keep=False).text
    functions = [catalogue.get(claim).check.partition(":")[2] for claim in collected]
    assert [line.partition("::")[2] for line in text.splitlines() if "::" in line] == functions


def test_profile_marks_are_its_must_pass_lists() -> None:
    ids = list(catalogue.claims())
    for profile, marked in marks._profiles().items():
        patterns = {p for must_pass in hardware_profiles.load(profile).must_pass for p in must_pass.claims}
        assert marked == {claim for claim in ids if any(fnmatchcase(claim, pattern) for pattern in patterns)}


@pytest.mark.parametrize(
    ("call", "collected"),
    [
        ([], ["plan.accepted"]),
        (["--stack", "planner"], with_check()),  # a real stack on a CPU has no list, and so everything is required
    ],
)
def test_run_without_a_list_asks_for_all(
    session: Session, monkeypatch: pytest.MonkeyPatch, call: list[str], collected: list[str]
) -> None:
    monkeypatch.setattr(marks, "_profiles", lambda: {"cpu": {"plan.accepted"}})
    text = session(SUITES, "--collect-only", "-q", "-m", "cpu", *call, tiny=False, keep=False).text
    assert sum("::" in line for line in text.splitlines()) == len(collected)


def test_markers_are_registered(session: Session) -> None:
    text = session(SUITES, "--markers", keep=False).text
    for name in (*catalogue.LAYERS, "cpu", "sm90", "sm100", "sm103", "sm120", "sm121", "claim(id)"):
        assert f"@pytest.mark.{name}" in text


_PLAIN = "from conformance.suite import claim\n@claim({})\ndef {}(stack, context): return None\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            _PLAIN.format("'plan.axes.heads'", "heads"),
            "claim plan.axes.heads is checked by suites.plan.test_axes:heads, not here",
        ),
        (_PLAIN.format("'plan.axes.head'", "heads"), "unknown claim 'plan.axes.head'; nearest: plan.axes.heads"),
        (_PLAIN.format("'plan.' + 'accepted'", "accepted"), "@claim takes one id, written out"),
        (_PLAIN.format("'plan.accepted'", "accepted") + "def test_own(): pass\n", "test_own is no check"),
    ],
)
def test_file_that_disagrees_with_the_claims_is_an_error(
    session: Session, pytester: pytest.Pytester, body: str, words: str
) -> None:
    """The gate would run something else than what stands there."""
    stray = pytester.makepyfile(body)
    outcome = session(str(stray), "-p", "conformance.pytest_plugin", keep=False)
    assert outcome.code == pytest.ExitCode.INTERRUPTED
    assert words in outcome.text


def test_imported_check_is_no_item(session: Session, pytester: pytest.Pytester) -> None:
    imports = "from conformance.suite import claim\nfrom suites.plan.test_axes import heads\n"
    own = pytester.makepyfile(imports + "def test_own(): assert heads and claim")
    outcome = session(str(own), "-p", "conformance.pytest_plugin", tiny=False, keep=False)
    assert outcome.code == 0, outcome.text
    assert "1 passed" in outcome.text
