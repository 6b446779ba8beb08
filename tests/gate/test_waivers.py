"""A waiver lets one failing claim through, for a time and with an issue; it hides nothing else."""

from __future__ import annotations

import datetime

import pytest

from conformance.errors import UsageError
from conformance.gate import folder, waivers
from conformance.gate.gate import run_gate
from conformance.result import Status
from tests.gate.fakes import FakeStack, claim, install, resolved, result

LATER = datetime.date.today() + datetime.timedelta(days=1)


def _entry(name="plan.a", issue="https://example.com/1", reason="known", until=LATER) -> str:
    return f'[[waiver]]\nclaim = "{name}"\nissue = "{issue}"\nreason = "{reason}"\nuntil = {until}\n'


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch):
    claims = [claim("plan.a", check="fails", group="plan.axes"), claim("plan.b"), claim("loader.c", group="loader.moe")]
    install(monkeypatch, claims, {"loader.moe": ("plan.axes",)}, {"fake": FakeStack()})
    monkeypatch.setattr(folder, "harness_commit", lambda: "c0ffee")


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "waivers.toml").write_text(text)
        return str(tmp_path / "waivers.toml")

    return write


def test_a_failing_claim_is_let_through(write, tmp_path):
    verdict, _ = run_gate(resolved(run_dir=str(tmp_path / "run"), waivers=write(_entry())))
    assert verdict.verdict == "GO with waivers" and not verdict.full_go
    first = verdict.claims[0]
    assert (first.status, first.evidence.ok) == (Status.WAIVED, False)
    assert "https://example.com/1" in first.reason and str(LATER) in first.reason
    assert [str(r.status) for r in verdict.claims] == ["waived", "pass", "pass"]


@pytest.mark.parametrize("status", Status)
def test_only_a_failure_is_waived(write, status):
    known = waivers.load(write(_entry()))
    assert waivers.apply(result(status), known).status is (Status.WAIVED if status is Status.FAIL else status)
    assert waivers.apply(result(Status.FAIL, name="plan.b"), known).status is Status.FAIL


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_entry(name="plan.z"), "unknown claim 'plan.z'; nearest: plan."),
        (_entry(issue="later"), "plan.a needs the link of an issue"),
        (_entry(issue=""), "plan.a needs the link of an issue"),
        (_entry(reason="  "), "and a reason"),
        (_entry(until=datetime.date.today() - datetime.timedelta(days=1)), "ended on"),
        (_entry() + _entry(), "waived twice"),
        (_entry().replace("reason", "because"), "because"),
        (_entry().replace('reason = "known"\n', ""), "reason"),
        (_entry(until='"soon"'), "until"),
        ("[[waiver]", "waivers.toml"),
        ("waiver = 3", "waivers.toml"),
        ("[[waivers]]\nclaim = 'plan.a'", "waivers"),
    ],
)
def test_waivers_that_are_none(write, text, words):
    with pytest.raises(UsageError) as caught:
        waivers.load(write(text))
    assert words in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_today_is_the_last_day(write):
    assert set(waivers.load(write(_entry(until=datetime.date.today())))) == {"plan.a"}


@pytest.mark.parametrize("path", ["/nonexistent/waivers.toml", "/tmp"])
def test_unreadable(path):
    with pytest.raises(UsageError, match=f"--waivers {path}"):
        waivers.load(path)


def test_a_waiver_whose_claim_passes_is_stale(write, tmp_path):
    with pytest.raises(UsageError, match=r"waiver of plan\.b is stale"):
        run_gate(resolved(run_dir=str(tmp_path / "run"), waivers=write(_entry() + _entry(name="plan.b"))))


def test_a_resumed_run_forgets_waivers_that_are_gone(write, tmp_path):
    given = {"run_dir": str(tmp_path / "run"), "waivers": write(_entry())}
    assert run_gate(resolved(**given))[0].verdict == "GO with waivers"
    write("")
    assert run_gate(resolved(**given, resume=True))[0].verdict == "NO-GO"
