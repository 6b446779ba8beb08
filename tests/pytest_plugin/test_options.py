"""The gate's options under pytest, and calls that are wrong."""

from __future__ import annotations

import json

import pytest

from conformance.result import MEASURED
from tests.pytest_plugin.conftest import SUITES, Session

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (["--profile", "sm12"], "unknown profile 'sm12'; nearest: sm12"),
        (["--layers="], "--layers is empty: name a layer"),
        (["--layers", "plan,loder"], "unknown layer 'loder'; nearest: loader"),
        (["--stack", "vlm"], "unknown stack 'vlm'; nearest: vllm"),
        (["--emulate", "sm120", "--profile", "sm90"], "--emulate sm120 implies --profile cpu"),
        (["-m", "sm120", "--stack", "reference"], "cannot be judged under the GPU profile sm120"),
        (["--resume"], "--resume needs --run-dir"),
        (["--tp", "x"], "--tp is 'x'"),
        (["--stack", "miscalled"], "--vllm-source /nowhere: no checkout"),  # found only when the stack is opened
    ],
)
def test_wrong_call_is_one_line_and_pytests_own_code(session: Session, call: list[str], words: str) -> None:
    outcome = session(SUITES, *call, keep=False)
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert words in outcome.text
    assert "Traceback" not in outcome.text


@pytest.mark.parametrize(
    ("call", "profile"),
    [
        (["-m", "sm120"], "sm120"),
        (["-m", "sm120 and plan"], "cpu"),  # selects, and names nothing
        (["-m", "sm120", "--profile", "cpu"], "cpu"),
    ],
)
def test_profile_is_the_one_named(session: Session, call: list[str], profile: str) -> None:
    outcome = session(f"{SUITES}/plan", "--stack", "planner", *call)
    assert outcome.verdict["profile"] == profile


def test_header_says_what_will_be_judged(session: Session) -> None:
    text = session(SUITES, "--stack", "planner", "--tp", "2", "-k", "nosuch").text
    assert "conformance: deepseek-v4-tiny at TP2, profile cpu, stack planner, MoE backend cpu" in text


def test_gpu_found_decides_the_profile(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hardware_profiles.found", lambda: ("sm90", "a GPU"))
    outcome = session(f"{SUITES}/plan", "--stack", "planner")
    assert outcome.verdict["profile"] == "sm90"


def test_allow_incomplete(session: Session) -> None:
    outcome = session(SUITES, "--stack", "planner", "-k", "loader.w2", "--allow-incomplete")
    assert outcome.code == 0, outcome.text
    assert outcome.verdict["verdict"] == "INCOMPLETE"


def test_allow_incomplete_forgives_no_failure(session: Session) -> None:
    assert session(f"{SUITES}/plan", "--stack", "wrong", "--allow-incomplete").code == 1


def test_adapter_in_trouble_fails_and_is_incomplete(session: Session) -> None:
    outcome = session(SUITES, "--stack", "tripping", "-k", "test_axes or test_accepted")
    assert outcome.code == 6, outcome.text
    assert set(outcome.statuses.values()) == {"error"}
    assert "RuntimeError: the adapter tripped" in outcome.text
    assert "7 failed" in outcome.text


def test_no_gate_runs_blocked_claims(session: Session) -> None:
    outcome = session(SUITES, "--stack", "wrong", "--no-gate", "-k", "axes.heads or w2.offsets")
    assert outcome.statuses["loader.w2.offsets"] == "not-supported"


def test_used_folder_is_refused_and_resume_goes_on(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pytester.path / "calls"
    monkeypatch.setenv("FAKE_STACK_CALLS", str(calls))
    call = (SUITES, "--stack", "planner", "--layers", "plan,quant,loader")
    first = session(*call)
    lines = len(first.evidence())
    again = session(*call)
    assert again.code == pytest.ExitCode.USAGE_ERROR
    assert "already holds a run; add --resume" in again.text
    resumed = session(*call, "--resume")
    assert resumed.statuses == first.statuses
    assert calls.read_bytes() == b"."  # the plan of the first run still stands
    tried_again = [claim for claim, status in first.statuses.items() if status not in MEASURED]
    assert sorted(line["id"] for line in resumed.evidence()[lines:]) == sorted(tried_again)


def test_resumed_run_refuses_another_stack(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if nothing is left to be measured."""
    session(SUITES, "--stack", "planner", "--layers", "plan")
    monkeypatch.setenv("FAKE_STACK_VERSION", "2")
    outcome = session(SUITES, "--stack", "planner", "--layers", "plan", "--resume")
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert "stack planner has changed since the run began" in outcome.text


def test_manifest_says_what_was_asked(session: Session) -> None:
    outcome = session(SUITES, "--stack", "planner", "--layers", "plan", "--tp", "2")
    manifest = json.loads((outcome.folder / "manifest.json").read_text())
    assert manifest["settings"] | {"tp": "2", "stack": "planner", "layers": "plan"} == manifest["settings"]
    assert list(manifest["stacks"]) == ["planner"]


@pytest.mark.parametrize(
    ("claim", "code", "words"),
    [
        ("plan.axes.heads", 0, "GO with waivers (scope: plan)"),
        ("plan.axes.vocab", pytest.ExitCode.USAGE_ERROR, "the waiver of plan.axes.vocab is stale"),
    ],
)
def test_waivers(session: Session, pytester: pytest.Pytester, claim: str, code: int, words: str) -> None:
    waivers = pytester.path / "waivers.toml"
    waiver = f'claim = "{claim}"\nissue = "https://example.org/1"\nreason = "known"\nuntil = 2999-12-31\n'
    waivers.write_text(f"[[waiver]]\n{waiver}")
    outcome = session(SUITES, "--stack", "wrong", "--layers", "plan", "--waivers", str(waivers))
    assert outcome.code == code, outcome.text
    assert words in outcome.text
