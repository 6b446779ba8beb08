"""The claims as they ship: ids, files, checks, dependencies; and their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import TREE, catalogue, geometry
from conformance.errors import UsageError
from conformance.suite import CLAIM_ATTRIBUTE
from conformance.target import Target

CLAIMS = catalogue.claims()
GUARDS = {name for name in CLAIMS if name.startswith("plan.guard.")}
DRAFT = {name for name in CLAIMS if name.startswith("plan.draft.")}


def _target(model: str, **changes) -> Target:
    """A run of b12x at TP3 on 12.0, which vets that pair; `arithmetic` says that it is the profile's own backend."""
    fields = {"tp": 3, "capability": (12, 0), "vetted": (((12, 0), "B12X_MLA_SPARSE", "b12x"),), "arithmetic": "bf16"}
    fields |= {"backend": "b12x", "attention": "B12X_MLA_SPARSE"} | changes
    return Target(geometry.load(model), intermediate_roundings=(1,), hidden_roundings=(1,), **fields)


def _lacking(target: Target) -> set[str]:
    return {c.id for c in CLAIMS.values() if c.layer == "plan" and c.not_applicable(target)}


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
        ("gpt-oss-120b", {"plan.axes.heads", "plan.axes.groups", "plan.axes.shared", *DRAFT, *GUARDS}),
        ("deepseek-v4-flash", set()),
    ],
)
def test_what_does_not_apply_is_decided_from_the_geometry(model, lacking):
    assert _lacking(_target(model)) == lacking


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({"tp": 2}, {*GUARDS, "plan.draft.guard"}),
        ({"tp": 2, "expert_parallel": True}, {*GUARDS, "plan.draft.guard"} - {"plan.guard.expert_parallel"}),
        ({"capability": None}, {*GUARDS, "plan.draft.guard", "plan.backend", "plan.kernel.activation"}),
        ({"capability": (9, 0)}, {"plan.guard.vetted"}),
        ({"vetted": ()}, {"plan.guard.vetted"}),
        ({"arithmetic": None}, {"plan.kernel.activation"}),
    ],
)
def test_what_does_not_apply_is_decided_from_profile_and_size(changes, lacking):
    assert _lacking(_target("deepseek-v4-flash", **changes)) == lacking


@pytest.mark.parametrize(
    ("claim", "model", "changes", "why"),
    [
        ("plan.axes.shared", "gpt-oss-120b", {}, "gpt-oss-120b has no shared experts"),
        ("plan.guard.pairs", "gpt-oss-120b", {}, "virtual TP is not for gpt_oss"),
        (
            "plan.guard.pairs",
            "deepseek-v4-flash",
            {"tp": 2},
            "TP2 divides deepseek-v4-flash's heads, groups and experts",
        ),
        ("plan.backend", "deepseek-v4-flash", {"capability": None}, "the profile has no CUDA capability"),
        ("plan.draft.quant", "gpt-oss-120b", {}, "gpt-oss-120b has no draft layers"),
        (
            "plan.kernel.activation",
            "deepseek-v4-flash",
            {"arithmetic": None},
            "b12x is not the profile's own MoE backend",
        ),
    ],
)
def test_why_it_does_not_apply(claim, model, changes, why):
    assert CLAIMS[claim].not_applicable(_target(model, **changes)) == why
