"""The claims as they ship: ids, files, checks, dependencies; and their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import TREE, catalogue, geometry
from conformance.errors import UsageError
from conformance.suite import CLAIM_ATTRIBUTE

CLAIMS = catalogue.claims()


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_leads_to_its_file(claim):
    """`loader.w2.offsets` -> suites/loader/, to a check that carries the claim's own id."""
    if not claim.check:
        return
    module = claim.check.partition(":")[0]
    assert module.startswith(f"suites.{claim.layer}.test_")
    assert (Path(TREE) / f"{module.replace('.', '/')}.py").is_file()
    assert getattr(claim.function(), CLAIM_ATTRIBUTE) == claim.id


def test_no_check_serves_two_claims():
    checks = [c.check for c in CLAIMS.values() if c.check]
    assert len(checks) == len(set(checks))


def test_layers_come_in_order():
    layers = [c.layer for c in CLAIMS.values()]
    assert layers == sorted(layers, key=["plan", "loader", "quant", "attention", "moe", "graph", "e2e"].index)


def test_groups_come_after_those_they_need():
    groups = [c.group for c in CLAIMS.values()]
    for group, needs in catalogue.dependencies().items():
        assert group in groups
        for needed in needs:
            assert max(i for i, g in enumerate(groups) if g == needed) < groups.index(group)


def test_the_dependencies_that_the_design_states():
    needs = catalogue.dependencies()
    assert needs["loader.moe"] == ("plan.axes",)
    assert "loader.moe" in needs["moe.tp3"] and "loader.moe" in needs["e2e.parity"]
    assert not any("plan.accepted" in of or "plan.guard" in of for of in needs.values())
    assert not any(group.startswith("quant.") for group in needs)


def test_unknown_claims_and_layers():
    with pytest.raises(UsageError, match=r"unknown claim 'loader.w2.ofsets'; nearest: loader.w2.offsets "):
        catalogue.get("loader.w2.ofsets")
    with pytest.raises(UsageError, match="unknown layer 'loder'; nearest: loader "):
        catalogue.check_layers(["plan", "loder"])
    assert catalogue.check_layers(["moe", "plan", "moe"]) == ("plan", "moe")


@pytest.mark.parametrize(
    ("model", "lacking"),
    [
        ("gpt-oss-120b", {"plan.axes.heads", "plan.axes.groups", "plan.axes.shared"}),
        ("deepseek-v4-flash", set()),
    ],
)
def test_what_does_not_apply_is_decided_from_the_geometry(model, lacking):
    found = {c.id for c in CLAIMS.values() if c.layer == "plan" and c.not_applicable(geometry.load(model))}
    assert found == lacking


def test_why_it_does_not_apply():
    assert (
        CLAIMS["plan.axes.shared"].not_applicable(geometry.load("gpt-oss-120b")) == "gpt-oss-120b has no shared experts"
    )
