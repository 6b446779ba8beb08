"""Sessions that are none of ours, and the harness's own tests beside claims."""

from __future__ import annotations

import pytest

from tests.pytest_plugin.conftest import SUITES, Session

pytest_plugins = ["pytester"]

_PLUGIN = ("-p", "conformance.pytest_plugin")


@pytest.mark.parametrize(
    ("body", "selection", "code"),
    [
        ("def test_own(): pass", [], pytest.ExitCode.OK),
        ("def test_own(): assert 0", [], pytest.ExitCode.TESTS_FAILED),
        ("def test_own(): pass", ["-k", "nosuch"], pytest.ExitCode.NO_TESTS_COLLECTED),
        ("import nosuch", [], pytest.ExitCode.INTERRUPTED),
    ],
)
def test_session_without_claims_is_pytests_own(
    session: Session, pytester: pytest.Pytester, body: str, selection: list[str], code: int
) -> None:
    own = pytester.makepyfile(body)
    outcome = session(str(own), *_PLUGIN, *selection, tiny=False, keep=False)
    assert outcome.code == code
    assert "conformance ==" not in outcome.text
    assert not (pytester.path / "runs").exists()


def test_claims_that_are_all_deselected_leave_no_verdict(session: Session, pytester: pytest.Pytester) -> None:
    outcome = session(SUITES, "-k", "nosuch", tiny=False, keep=False)
    assert outcome.code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not (pytester.path / "runs").exists()


def test_default_folder_is_under_runs(session: Session, pytester: pytest.Pytester) -> None:
    session(SUITES, "--stack", "planner", "--layers", "plan", keep=False)
    assert [path.name for path in (pytester.path / "runs").glob("*-planner-*/*") if path.name == "verdict.json"]


@pytest.mark.parametrize(("body", "code"), [("pass", 0), ("assert 0", 1)])
def test_own_failure_beside_a_go_is_a_failure(
    session: Session, pytester: pytest.Pytester, body: str, code: int
) -> None:
    own = pytester.makepyfile(f"def test_own(): {body}")
    outcome = session(str(own), SUITES, "--stack", "planner", "--layers", "plan")
    assert outcome.code == code, outcome.text
    assert outcome.verdict["headline"] == "GO (scope: plan)"


def test_own_failure_is_not_hidden_by_allow_incomplete(session: Session, pytester: pytest.Pytester) -> None:
    own = pytester.makepyfile("def test_own(): assert 0")
    call = (str(own), SUITES, "--stack", "planner", "-k", "test_own or w2.offsets", "--allow-incomplete")
    assert session(*call).code == 1


def test_claims_run_first_and_in_schedule_order(session: Session, pytester: pytest.Pytester) -> None:
    own = pytester.makepyfile("def test_own(): pass")
    outcome = session(str(own), f"{SUITES}/loader", f"{SUITES}/plan", "--stack", "planner", "--collect-only", "-q")
    lines = [line for line in outcome.text.splitlines() if "::" in line]
    assert lines[0] == "suites/plan/test_accepted.py::accepted"
    assert lines[-1].endswith("::test_own")
    layers = [line.split("/")[1] for line in lines[:-1]]
    assert layers == sorted(layers, key=["plan", "loader"].index)


@pytest.mark.parametrize("stack", ["planner", "tripping"])
def test_teardown_trouble_is_no_success(session: Session, pytester: pytest.Pytester, stack: str) -> None:
    """Neither after a pass nor after a claim whose own trouble --allow-incomplete forgives."""
    pytester.makepyfile(interferes="def pytest_runtest_teardown(item): assert item.name != 'heads'")
    pytester.syspathinsert()
    call = (SUITES, "--stack", stack, "--layers", "plan", "--allow-incomplete")
    assert session(*call, "-p", "interferes").code == 1


def test_exit_with_zero_half_way_is_no_success(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        interferes="""
        import pytest
        def pytest_runtest_setup(item):
            if item.name == "heads":
                pytest.exit("enough", returncode=0)
        """
    )
    pytester.syspathinsert()
    outcome = session(SUITES, "--stack", "planner", "--layers", "plan", "-p", "interferes")
    assert outcome.code == 6, outcome.text
    assert outcome.statuses["plan.axes.heads"] == "not-run"


def test_interrupted_session_says_how_to_go_on(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        interferes="""
        def pytest_runtest_setup(item):
            if item.name == "heads":
                raise KeyboardInterrupt
        """
    )
    pytester.syspathinsert()
    outcome = session(SUITES, "--stack", "planner", "--layers", "plan", "-p", "interferes")
    assert outcome.code == pytest.ExitCode.INTERRUPTED
    assert f"--run-dir {outcome.folder} --resume goes on" in outcome.text
    assert outcome.evidence()[0]["id"] == "plan.accepted"
