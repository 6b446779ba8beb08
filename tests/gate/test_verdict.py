"""The verdict table: each status, required and not, alone and mixed; exit codes; what was never reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.gate.verdict import EXIT, PYTEST_EXIT, Word, judge
from conformance.result import BLOCKING, MEASURED, NO_GO, Status
from tests.gate.fakes import claim, install, resolved, result

#: status -> verdict beside one required pass: where it is required, where it is not
TABLE = {
    "pass": ("GO", "GO"),
    "fail": ("NO-GO", "NO-GO"),
    "crash": ("NO-GO", "NO-GO"),
    "error": ("INCOMPLETE", "GO"),
    "timeout": ("INCOMPLETE", "GO"),
    "blocked": ("INCOMPLETE", "GO"),
    "not-run": ("INCOMPLETE", "GO"),
    "not-supported": ("INCOMPLETE", "GO"),
    "not-applicable": ("GO", "GO"),
    "waived": ("GO with waivers", "GO with waivers"),
}


@pytest.fixture
def run(monkeypatch):
    """Nothing is required by the profile itself: each result says whether it is."""
    install(monkeypatch, [claim("plan.a"), claim("plan.b")])
    return resolved(layers="graph")


def _word(run, *results) -> str:
    return str(judge(run, list(results)).verdict)


def test_every_status_is_in_the_table():
    assert set(TABLE) == {str(status) for status in Status}


@pytest.mark.parametrize("status", TABLE)
@pytest.mark.parametrize("required", [True, False])
def test_table(run, status, required):
    beside = result(Status.PASS, name="plan.b")
    assert _word(run, beside, result(Status(status), required)) == TABLE[status][not required]


@pytest.mark.parametrize("status", TABLE)
def test_nothing_required_is_never_a_go(run, status):
    assert _word(run, result(Status(status), required=False)) in ("NO-GO", "INCOMPLETE")
    assert _word(run) == "INCOMPLETE"


def test_only_what_does_not_apply_is_no_go_either(run):
    assert _word(run, result(Status.NOT_APPLICABLE)) == "INCOMPLETE"


@given(st.lists(st.tuples(st.sampled_from(list(Status)), st.booleans()), max_size=6))
def test_no_go_outranks_incomplete_outranks_go(run, cases):
    alone = [TABLE[status][not required] for status, required in cases]
    proved = [s for s, required in cases if required and s in ("pass", "waived")]
    due = "GO with waivers" if "GO with waivers" in alone else "GO"
    if "INCOMPLETE" in alone or not [s for s, required in cases if required and s != "not-applicable"]:
        due = "INCOMPLETE"
    if "NO-GO" in alone:
        due = "NO-GO"
    word = _word(run, *(result(s, required, f"plan.{i}") for i, (s, required) in enumerate(cases)))
    assert word == due
    if word.startswith("GO"):
        assert proved


@pytest.mark.parametrize(
    ("word", "shell", "pytest_code"), [("GO", 0, 0), ("GO with waivers", 0, 0), ("NO-GO", 1, 1), ("INCOMPLETE", 3, 6)]
)
def test_exit_codes(word, shell, pytest_code):
    assert EXIT[Word(word)] == shell
    assert PYTEST_EXIT[Word(word)] == pytest_code


def test_what_blocks_and_what_is_measured():
    """design.md: `Fail, crash, error, timeout and blocked block`; --resume repeats whatever was not measured."""
    assert {str(s) for s in NO_GO} == {"fail", "crash"}
    assert {str(s) for s in BLOCKING} == {"fail", "crash", "error", "timeout", "blocked"}
    assert {str(s) for s in MEASURED} == {"pass", "fail", "not-applicable"}


def test_required_claims_that_were_never_reached(monkeypatch):
    """A run that lost its way is INCOMPLETE, however well the rest went."""
    install(monkeypatch, [claim("plan.a"), claim("plan.b"), claim("loader.c")])
    verdict = judge(resolved(), [result(Status.PASS)])
    assert verdict.verdict == "INCOMPLETE"
    assert [(r.id, str(r.status), r.required) for r in verdict.claims] == [
        ("plan.a", "pass", True),
        ("plan.b", "not-run", True),
        ("loader.c", "not-run", True),
    ]
    assert verdict.counts == {"pass": 1, "not-run": 2}


def test_what_lies_outside_the_scope_is_not_missing(monkeypatch):
    install(monkeypatch, [claim("plan.a"), claim("loader.c")])
    assert judge(resolved(layers="plan"), [result(Status.PASS)]).verdict == "GO"
    assert judge(resolved(), [result(Status.PASS)], selection="-k a").verdict == "GO"


def test_counts(run):
    results = [result(Status.PASS), result(Status.PASS, name="plan.b"), result(Status.FAIL, name="plan.c")]
    assert judge(run, results).counts == {"pass": 2, "fail": 1}
