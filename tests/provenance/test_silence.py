"""No false alarm: on a right loader every plan and loader check passes, whatever the sizes are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import hardware_profiles
from conformance import catalogue
from conformance.context import Context, Target
from conformance.geometry import Geometry
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack

CHECKS = [c for c in catalogue.claims().values() if c.layer in ("plan", "loader")]


@st.composite
def _targets(draw) -> Target:
    groups = draw(st.integers(0, 3))
    model = Geometry(
        name="any",
        model_type="",
        hidden_size=32 * draw(st.integers(1, 4)),
        attention_heads=8 * max(1, groups),
        kv_heads=1,
        head_dim=64,
        intermediate=32 * draw(st.integers(1, 40)),
        experts=draw(st.integers(1, 4)),
        top_k=1,
        vocab=draw(st.integers(1, 2000)),
        layers=1,
        output_groups=groups,
        shared_experts=draw(st.integers(0, 2)),
    )
    backend = draw(st.sampled_from(list(hardware_profiles.backends().values())))
    return Target(model, draw(st.integers(1, 6)), backend.name, None, None, backend.intermediate, backend.hidden)


@given(_targets())
def test_the_reference_stack_is_never_accused(target):
    padding = {"intermediate": target.intermediate_roundings[0], "hidden": target.hidden_roundings[0]}
    stack = ReferenceStack(StackOptions(emulate=padding))
    context = Context(target, stack.planner(), stack.loader())
    for claim in CHECKS:
        if not claim.not_applicable(target.geometry):
            evidence = claim.function()(stack, context)
            assert evidence.ok, f"{claim.id}: {evidence.summary} {evidence.findings[:1]}"
