"""A group that failed, or could not be measured, blocks those that need it; nothing else does."""

from __future__ import annotations

import pytest

from conformance import errors
from conformance.gate.gate import run_gate
from tests.gate import fakes
from tests.gate.fakes import FakeStack, claim, install, resolved


def _raises(error):
    def act(stack, context):
        raise error

    return act


#: what happens in plan.axes -> the status of loader.moe, which needs it
OUTCOMES = {
    "pass": (fakes.passes, "pass"),
    "fail": (fakes.fails, "blocked"),
    "crash": (_raises(errors.StackCrashed("died")), "blocked"),
    "error": (_raises(errors.AdapterError("no attribute")), "blocked"),
    "timeout": (_raises(errors.StackTimeout("300 s")), "blocked"),
    "blocked": (_raises(errors.Blocked("refused")), "blocked"),
    "not-supported": (_raises(errors.NotSupported("no plan")), "pass"),
    "not-run": (_raises(errors.StackMissing("pip install")), "pass"),
}


@pytest.fixture
def statuses(monkeypatch, tmp_path):
    def run(action, *, selected=None, needs=None, **settings):
        claims = [
            claim("plan.accepted", check="fails"),
            claim("plan.axes.a", check="acts", group="plan.axes"),
            claim("plan.axes.b", group="plan.axes"),
            claim("loader.w2", group="loader.moe"),
            claim("moe.x", group="moe.tp3"),
            claim("quant.x"),
        ]
        needs = needs or {"loader.moe": ("plan.axes",), "moe.tp3": ("loader.moe",)}
        install(monkeypatch, claims, needs, {"fake": FakeStack(), "reference": FakeStack()})
        monkeypatch.setattr(fakes, "acts", action, raising=False)
        verdict, _ = run_gate(resolved(run_dir=str(tmp_path / "run"), **settings), selected)
        return {r.id: (str(r.status), r.reason) for r in verdict.claims}

    return run


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_blocks(statuses, outcome):
    action, due = OUTCOMES[outcome]
    found = statuses(action)
    assert found["plan.axes.a"][0] == outcome
    assert found["loader.w2"][0] == due
    assert found["plan.axes.b"][0] == found["quant.x"][0] == "pass"


def test_the_reason_names_the_claim_in_the_way(statuses):
    found = statuses(fakes.fails)
    assert found["loader.w2"] == ("blocked", "needs plan.axes.a fail; --no-gate runs it all the same")
    assert found["moe.x"] == ("blocked", "needs loader.w2 blocked; --no-gate runs it all the same")


def test_no_gate_runs_blocked_claims_all_the_same(statuses):
    found = statuses(fakes.fails, no_gate=True)
    assert [found[name][0] for name in ("plan.axes.a", "loader.w2", "moe.x")] == ["fail", "pass", "pass"]


def test_plan_accepted_blocks_nothing(statuses):
    found = statuses(fakes.passes)
    assert [found[name][0] for name in ("plan.accepted", "loader.w2", "moe.x")] == ["fail", "pass", "pass"]


def test_what_was_not_selected_does_not_block(statuses):
    assert statuses(fakes.fails, selected={"loader.w2"}) == {"loader.w2": ("pass", "")}


def test_layers_that_were_not_selected_do_not_block(statuses):
    found = statuses(fakes.fails, layers="loader,moe")
    assert {name: status for name, (status, _) in found.items()} == {"loader.w2": "pass", "moe.x": "pass"}
