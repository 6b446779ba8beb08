"""0 only for a GO, 1 for a NO-GO, 6 for INCOMPLETE: as the codes of a process, which is what CI sees."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from conformance import catalogue
from conformance.gate.settings import Settings, resolve
from tests.pytest_plugin.conftest import SUITES, Outcome, Session

pytest_plugins = ["pytester"]


def test_go_is_zero(process: Session) -> None:
    outcome = process(SUITES, "--stack", "planner", "--layers", "plan")
    assert outcome.code == 0, outcome.text
    assert outcome.verdict["headline"] == "GO (scope: plan)"


def test_reference_stack_is_a_go_of_the_harness(session: Session) -> None:
    outcome = session(SUITES)
    assert outcome.code == 0, outcome.text
    assert outcome.verdict["verdict"] == "GO"
    assert outcome.verdict["scope"] == "full"
    target = resolve(Settings(profile="cpu", geometry="deepseek-v4-tiny")).target
    for name, status in outcome.statuses.items():
        assert status == ("not-applicable" if catalogue.get(name).not_applicable(target) else "pass"), name
    assert "GO (reference stack: this judges the harness, not a machine)" in outcome.text
    written = {path.name for path in outcome.folder.iterdir()}
    assert {"manifest.json", "evidence.jsonl", "junit.xml", "report.html", "attestation.json"} <= written
    assert [line["id"] for line in outcome.evidence()] == list(outcome.statuses)


def test_wrong_stack_is_a_no_go(process: Session, tmp_path: Path) -> None:
    outcome = process(SUITES, "--stack", "wrong", "--junitxml", str(tmp_path / "junit.xml"))
    assert outcome.code == 1, outcome.text
    assert outcome.verdict["headline"] == "NO-GO"
    assert outcome.statuses["plan.axes.heads"] == "fail"
    assert outcome.statuses["plan.axes.vocab"] == "pass"
    assert outcome.statuses["loader.w2.offsets"] == "blocked"
    assert "expected 8 heads, got 7 heads" in outcome.text
    assert "repeat: conformance gate --claim plan.axes.heads" in outcome.text
    cases = {case.get("classname", "") + ":" + case.get("name", ""): case for case in _cases(tmp_path / "junit.xml")}
    assert cases["suites.plan.test_axes:heads"].find("failure") is not None
    assert cases["suites.plan.test_axes:vocab"].find("skipped") is None
    skipped = cases["suites.loader.test_w2:offsets"].find("skipped")
    assert skipped is not None
    assert "needs plan.axes.heads fail" in str(skipped.get("message"))


def test_profile_without_its_stack_is_incomplete(process: Session, python_without_packages: Path) -> None:
    """Every check skips with the reason, and nothing falls back to the reference stack."""
    outcome = process(SUITES, "-m", "sm120", "--vllm-python", str(python_without_packages))
    assert outcome.code == 6, outcome.text
    assert outcome.verdict["headline"] == "INCOMPLETE"
    assert outcome.verdict["subject"] == "vllm"
    assert outcome.verdict["profile"] == "sm120"
    assert _statuses(outcome) == {"not-run"}
    assert "not-run: vllm is not importable" in outcome.text
    assert " passed" not in outcome.text
    assert "/suites/loader/test_w2.py:" in outcome.text  # where the check is, not where the plugin skips it


def _statuses(outcome: Outcome) -> set[str]:
    """Of every claim but those of `--checkpoint`, which is not given here, and of another kind of model."""
    elsewhere = ("loader.files.", "loader.qkvo.", "loader.expert_bias.")
    assert {s for i, s in outcome.statuses.items() if i.startswith(elsewhere)} == {"not-applicable"}
    return {s for i, s in outcome.statuses.items() if not i.startswith(elsewhere)}


def _cases(path: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(path).iter("testcase"))
