"""What a verdict is about: all that the must-pass list asks for, or what the caller chose; never what was collected."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import SUITES, Session, with_check

pytest_plugins = ["pytester"]

_PLAN_ONLY = ("--stack", "planner")  # proves plan.*, and supports nothing else
_NO_AXES = ("--deselect", "suites/plan/test_axes.py")


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (["-k", "axes.heads or axes.vocab"], ["plan.axes.heads", "plan.axes.vocab"]),
        (["-m", "plan and not loader", "-k", "accepted"], ["plan.accepted"]),
        (["-m", 'claim(id="plan.axes.shared")'], ["plan.axes.shared"]),
        (
            ["--ignore-glob", f"{SUITES}/[!p]*", "--ignore-glob", f"{SUITES}/plan/test_[!a]*", *_NO_AXES],
            ["plan.accepted"],
        ),
    ],
)
def test_selection_is_judged_alone(session: Session, selection: list[str], chosen: list[str]) -> None:
    outcome = session(SUITES, *_PLAN_ONLY, *selection)
    assert outcome.code == 0, outcome.text
    assert list(outcome.statuses) == chosen
    noun = "claim" if len(chosen) == 1 else "claims"
    assert outcome.verdict["scope"] == f"{len(chosen)} chosen {noun}"
    assert f"GO (scope: {len(chosen)} chosen {noun})" in outcome.text


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        (["suites/plan/test_axes.py::heads"], ["plan.axes.heads"]),
        (["suites/plan/test_axes.py::vocab", "suites/plan/test_accepted.py"], ["plan.accepted", "plan.axes.vocab"]),
    ],
)
def test_paths_and_node_ids_are_a_selection(session: Session, arguments: list[str], chosen: list[str]) -> None:
    outcome = session(*(f"{Path(SUITES).parent}/{argument}" for argument in arguments), *_PLAN_ONLY)
    assert outcome.code == 0, outcome.text
    assert list(outcome.statuses) == chosen
    assert "chosen claim" in outcome.verdict["scope"]


def test_keyword_that_leaves_nothing_out_is_a_selection_all_the_same(session: Session, untested: str) -> None:
    outcome = session(SUITES, *_PLAN_ONLY, "-k", "not nosuch")
    assert outcome.verdict["scope"] == f"{len(with_check())} chosen claims"
    assert untested not in outcome.statuses


def test_layers_name_the_scope(session: Session) -> None:
    outcome = session(SUITES, *_PLAN_ONLY, "--layers", "plan")
    assert outcome.code == 0, outcome.text
    assert outcome.verdict["scope"] == "plan"
    assert {claim.split(".")[0] for claim in outcome.statuses} == {"plan"}
    assert f"{len(with_check()) - len(with_check('plan'))} deselected" in outcome.text


def test_claims_without_a_check_are_still_due(session: Session, untested: str) -> None:
    outcome = session(SUITES, *_PLAN_ONLY, "--layers", "plan")
    assert outcome.code == 6, outcome.text
    assert outcome.statuses[untested] == "not-run"
    assert f"required and not proved: {untested}" in outcome.text


def test_full_scope_is_all_that_is_required(session: Session, untested: str) -> None:
    outcome = session(SUITES, *_PLAN_ONLY)
    assert outcome.code == 6, outcome.text
    assert outcome.verdict["scope"] == "full"
    assert outcome.statuses["plan.axes.heads"] == "pass"
    assert outcome.statuses["loader.w2.offsets"] == "not-supported"
    assert outcome.statuses[untested] == "not-run"


def test_all_folders_by_name_are_no_selection(session: Session) -> None:
    folders = sorted({str(path.parent) for path in Path(SUITES).glob("*/test_*.py")}, reverse=True)
    assert session(*folders, *_PLAN_ONLY).verdict["scope"] == "full"


def test_policy_runs_its_own_claims_and_is_a_full_scope(session: Session) -> None:
    outcome = session(SUITES, *_PLAN_ONLY, "--policy", "audit")
    assert outcome.code == 6, outcome.text
    assert outcome.verdict["headline"] == "INCOMPLETE (policy: audit)"
    assert {claim.split(".")[0] for claim in outcome.statuses} == {"loader", "moe"}


@pytest.mark.parametrize("selection", [["-k", "heads"], ["--deselect", "suites/plan/test_axes.py"]])
def test_release_policy_refuses_a_selection(session: Session, selection: list[str]) -> None:
    outcome = session(SUITES, *_PLAN_ONLY, "--policy", "release", *selection)
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert "policy release refuses a selection" in outcome.text


@pytest.mark.parametrize("selection", [["-k", "nosuch"], ["-m", "sm120", "-k", "nosuch"]])
@pytest.mark.parametrize("allowed", [[], ["--allow-incomplete"]])
def test_empty_selection_is_never_a_pass(session: Session, selection: list[str], allowed: list[str]) -> None:
    outcome = session(SUITES, *_PLAN_ONLY, *selection, *allowed)
    assert outcome.code == 6, outcome.text
    assert "scope: 0 chosen claims" in outcome.text


def test_profile_mark_with_nothing_to_run_is_incomplete(session: Session, pytester: pytest.Pytester) -> None:
    own = pytester.makepyfile("def test_own(): pass")
    outcome = session(str(own), "-p", "conformance.pytest_plugin", "-m", "sm120", keep=False)
    assert outcome.code == 6, outcome.text
    assert "INCOMPLETE" in outcome.text


@pytest.mark.parametrize(
    ("plugin", "status", "reason"),
    [
        (
            "def pytest_collection_modifyitems(items): items[:] = [i for i in items if i.name != 'heads']",
            "not-run",
            "did not reach it",
        ),
        (
            """
            import pytest
            def pytest_collection_modifyitems(items):
                [i.add_marker(pytest.mark.skip(reason="not today")) for i in items if i.name == "heads"]
            """,
            "not-run",
            "not today",
        ),
        (
            """
            def pytest_runtest_setup(item):
                assert item.name != "heads", "no luck"
            """,
            "error",
            "no luck",
        ),
    ],
)
def test_what_others_keep_from_running_is_not_proved(
    session: Session, pytester: pytest.Pytester, plugin: str, status: str, reason: str
) -> None:
    """Dropped unsaid, skipped, or broken by another plugin: still due, and said to be missing."""
    pytester.makepyfile(interferes=plugin)
    pytester.syspathinsert()
    outcome = session(SUITES, *_PLAN_ONLY, "--layers", "plan", "-p", "interferes")
    assert outcome.code == 6, outcome.text
    assert outcome.verdict["scope"] == "plan"
    heads = next(claim for claim in outcome.verdict["claims"] if claim["id"] == "plan.axes.heads")
    assert heads["status"] == status
    assert reason in heads["reason"]
    assert outcome.statuses["plan.axes.vocab"] == "pass"


def test_expected_failure_is_a_failure(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        interferes="""
        import pytest
        def pytest_collection_modifyitems(items):
            [i.add_marker(pytest.mark.xfail) for i in items]
        """
    )
    pytester.syspathinsert()
    outcome = session(SUITES, "--stack", "wrong", "--layers", "plan", "-p", "interferes")
    assert outcome.code == 1, outcome.text
    assert outcome.statuses["plan.axes.heads"] == "fail"


def test_second_try_hides_no_failure(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As plugins do that run a failed test again."""
    monkeypatch.setenv("FAKE_STACK_CALLS", str(pytester.path / "calls"))
    pytester.makepyfile(
        interferes="""
        from _pytest.runner import runtestprotocol
        def pytest_runtest_protocol(item, nextitem):
            runtestprotocol(item, log=False, nextitem=nextitem)
        """
    )
    pytester.syspathinsert()
    outcome = session(SUITES, "--stack", "wavering", "--layers", "plan", "-p", "interferes")
    assert outcome.code == 1, outcome.text
    assert outcome.statuses["plan.accepted"] == "crash"


def test_suite_that_cannot_be_collected_leaves_its_claims_due(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        interferes="""
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makemodule(module_path):
            if module_path.name == "test_axes.py":
                raise OSError("broken suite")
        """
    )
    pytester.syspathinsert()
    call = (SUITES, *_PLAN_ONLY, "--layers", "plan", "-p", "interferes")
    stopped = session(*call)
    assert stopped.code == pytest.ExitCode.INTERRUPTED
    assert not stopped.folder.exists()
    went_on = session(*call, "--continue-on-collection-errors")
    assert went_on.code == 1, went_on.text
    assert went_on.verdict["headline"] == "INCOMPLETE (scope: plan)"
    assert went_on.statuses["plan.axes.heads"] == "not-run"


def test_suite_that_cannot_be_imported_costs_its_own_claims(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read, not imported, when it is collected."""
    monkeypatch.setitem(sys.modules, "suites.plan.test_axes", None)
    outcome = session(SUITES, *_PLAN_ONLY, "--layers", "plan")
    assert outcome.code == 6, outcome.text
    assert outcome.statuses["plan.axes.heads"] == "error"
    assert outcome.statuses["plan.accepted"] == "pass"
