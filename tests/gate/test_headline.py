"""The headline says everything that qualifies a verdict, and only a plain GO may launch anything."""

from __future__ import annotations

import msgspec
import pytest

from conformance.gate.verdict import judge
from conformance.result import Status
from tests.gate.fakes import FakeStack, claim, install, resolved, result

HARNESS = "reference stack: this judges the harness, not a machine"


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch):
    stacks = {name: FakeStack(name) for name in ("fake", "reference", "vllm")}
    install(monkeypatch, [claim("plan.a"), claim("loader.a"), claim("moe.tp3.reference")], stacks=stacks)


def _judge(selection="", names=("plan.a", "loader.a", "moe.tp3.reference"), **settings):
    return judge(resolved(**settings), [result(Status.PASS, name=name) for name in names], selection)


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({}, "GO"),
        ({"stack": "reference"}, f"GO ({HARNESS})"),
        ({"stack": None}, f"GO ({HARNESS})"),
        ({"stack": "reference", "emulate": "sm120"}, f"GO ({HARNESS}; emulating sm120)"),
        ({"policy": "audit"}, "GO (policy: audit)"),
        ({"policy": "release"}, "GO (policy: release)"),
        ({"layers": "loader"}, "GO (scope: loader)"),
        ({"layers": "moe,plan"}, "GO (scope: plan, moe)"),
        ({"selection": "2 chosen claims"}, "GO (scope: 2 chosen claims)"),
        ({"layers": "plan", "selection": "-k a"}, "GO (scope: plan; -k a)"),
        ({"repair": "w2-units"}, "GO (repaired: w2-units)"),
        ({"force_shard": True}, "GO (forced: --force-shard)"),
        (
            {"stack": "reference", "policy": "audit", "layers": "loader", "repair": "w2-units", "force_shard": True},
            f"GO ({HARNESS}; policy: audit; scope: loader; repaired: w2-units; forced: --force-shard)",
        ),
    ],
)
def test_headline(settings, due):
    assert _judge(**settings).headline == due


@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({}, "fake"),
        ({"stack": "reference"}, "reference"),
        ({"stack": "fake,loader=vllm", "layers": "loader"}, "vllm"),
        ({"stack": "fake,loader=vllm", "layers": "plan,loader"}, "plan=fake,loader=vllm"),
    ],
)
def test_subject_is_who_was_judged(settings, subject):
    assert _judge(**settings).subject == subject


@pytest.mark.parametrize("stack", ["loader=vllm", "reference,loader=fake"])
def test_a_scope_that_only_the_reference_stack_was_judged_in(stack):
    """Naming a real stack for a layer out of scope must not make the harness's own GO look like a machine's."""
    verdict = _judge(stack=stack, layers="plan", names=("plan.a",))
    assert verdict.headline == f"GO ({HARNESS}; scope: plan)"
    assert verdict.subject == "reference"


def test_layers_on_the_reference_stack_are_named():
    verdict = _judge(stack="fake,plan=reference")
    assert verdict.headline == f"GO (plan on the {HARNESS})"
    assert not verdict.full_go


@pytest.mark.parametrize("settings", [{}, {"policy": "audit"}, {"policy": "release"}, {"stack": "fake,loader=vllm"}])
def test_a_plain_go_may_launch(settings):
    assert _judge(**settings).full_go


@pytest.mark.parametrize(
    "settings",
    [
        {"stack": "reference"},
        {"stack": "reference", "emulate": "sm120"},
        {"layers": "plan,loader,quant,attention,moe,graph,e2e"},
        {"selection": "3 chosen claims"},
        {"repair": "w2-units"},
        {"force_shard": True},
        {"stack": "reference,loader=vllm"},
    ],
)
def test_nothing_else_may(settings):
    verdict = _judge(**settings)
    assert verdict.verdict == "GO" and not verdict.full_go


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.PASS, Status.NOT_APPLICABLE)])
def test_no_other_word_may(status):
    results = [result(Status.PASS), result(Status.PASS, name="loader.a"), result(status, name="moe.tp3.reference")]
    assert not judge(resolved(), results).full_go


def test_json():
    """design.md: {verdict, scope, subject, profile, stack, geometry, tp, claims: [{id, layer, ...}], counts}."""
    told = msgspec.json.decode(msgspec.json.encode(_judge(stack="reference", emulate="sm120", tp="3")))
    due = {
        "verdict": "GO",
        "scope": "full",
        "subject": "reference",
        "profile": "cpu",
        "emulate": "sm120",
        "stack": "reference",
        "geometry": "deepseek-v4-tiny",
        "tp": 3,
        "backend": "flashinfer_cutlass",
        "policy": "full",
        "counts": {"pass": 3},
    }
    assert {key: told[key] for key in due} == due
    assert set(told["claims"][0]) >= {"id", "layer", "status", "required", "reason", "evidence"}
