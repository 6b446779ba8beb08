"""Collecting: cheap, with markers, and faithful to the claims' data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance import catalogue
from tests.pytest_plugin.conftest import SUITES, Session, clean_environment

pytest_plugins = ["pytester"]

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
    assert f"{sum(bool(claim.check) for claim in catalogue.claims().values())} tests collected" in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "collected"),
    [
        (["-m", "plan"], 7),
        (["-m", "loader and sm121"], 17),
        (["-m", "sm120"], 24),
        (["-m", "cpu"], 24),
        (["-m", "quant"], 0),
        (["-k", "loader.w2.tails"], 1),
        (["-m", 'claim(id="loader.w2.offsets")'], 1),
    ],
)
def test_markers_select(session: Session, call: list[str], collected: int) -> None:
    text = session(SUITES, "--collect-only", "-q", *call, keep=False).text
    assert sum("::" in line for line in text.splitlines()) == collected


def test_markers_are_registered(session: Session) -> None:
    text = session(SUITES, "--markers", keep=False).text
    for name in (*catalogue.LAYERS, "cpu", "sm90", "sm100", "sm103", "sm120", "sm121", "claim(id)"):
        assert f"@pytest.mark.{name}" in text


@pytest.mark.parametrize(
    ("claim", "words"),
    [("plan.axes.heads", "is checked by suites.plan.test_axes:heads, not by"), ("plan.axes.head", "unknown claim")],
)
def test_check_that_is_not_its_claims_own_is_an_error(
    session: Session, pytester: pytest.Pytester, claim: str, words: str
) -> None:
    """The gate would run another function than the one that stands here."""
    stray = pytester.makepyfile(
        f"""
        from conformance.suite import claim

        @claim({claim!r})
        def stray(stack, context):
            return None
        """
    )
    outcome = session(str(stray), "-p", "conformance.pytest_plugin", keep=False)
    assert outcome.code == pytest.ExitCode.INTERRUPTED
    assert words in outcome.text


def test_imported_check_is_collected_once(session: Session, pytester: pytest.Pytester) -> None:
    own = pytester.makepyfile("from suites.plan.test_axes import heads\ndef test_own(): assert heads")
    outcome = session(str(own), "-p", "conformance.pytest_plugin", tiny=False, keep=False)
    assert outcome.code == 0, outcome.text
    assert "1 passed" in outcome.text
