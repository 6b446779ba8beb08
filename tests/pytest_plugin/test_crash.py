"""The plugin itself in trouble: whatever breaks, the session never ends with 0."""

from __future__ import annotations

import importlib

import pytest

from tests.pytest_plugin.conftest import SUITES, Session

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    "broken", ["scope.judged", "judging.told", "judging.Judging.begin", "items.ClaimItem.told", "record.Record.add"]
)
def test_crash_of_the_plugin_is_no_success(session: Session, broken: str) -> None:
    def crash(*arguments: object) -> None:
        raise RuntimeError("planted")

    with pytest.MonkeyPatch.context() as patch:  # undone before the session around this test reports
        part, *rest = broken.split(".")
        owner = importlib.import_module(f"conformance.pytest_plugin.{part}")  # not the package's attribute: it may be
        for name in rest[:-1]:  # left over from an earlier session in this process
            owner = getattr(owner, name)
        patch.setattr(owner, rest[-1], crash)
        try:
            code = session(SUITES, "--stack", "planner", "--layers", "plan").code
        except RuntimeError:  # out of pytest.main: Python itself ends with 1
            return
    assert code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERNAL_ERROR)
