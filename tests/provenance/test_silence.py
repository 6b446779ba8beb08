"""No false alarm: on a right loader every plan and loader check passes, whatever the sizes are."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

import hardware_profiles
from conformance import catalogue, expected, geometry
from conformance.context import Context
from conformance.geometry import Geometry
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target

CHECKS = [c for c in catalogue.claims().values() if c.layer == "plan" or c.group == "loader.moe"]
WHOLE = [c for c in catalogue.claims().values() if c.group in ("loader.model", "loader.draft")]


@st.composite
def _targets(draw) -> Target:
    groups = draw(st.integers(0, 3))
    model = Geometry(
        name="any",
        model_type=draw(st.sampled_from(["", "deepseek_v4"])),
        config={"num_nextn_predict_layers": draw(st.integers(0, 1))},
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
    capability = draw(st.sampled_from([None, (9, 0), (12, 0)]))
    own = (capability, "ANY", backend.name)
    return Target(
        model,
        draw(st.integers(1, 6)),
        backend.name,
        "ANY",
        capability,
        backend.intermediate,
        backend.hidden,
        vetted=(own, *hardware_profiles.vetted()),
        arithmetic=draw(st.sampled_from([None, "bf16"])),
        expert_parallel=draw(st.booleans()),
    )


@given(_targets())
def test_the_reference_stack_is_never_accused(target):
    padding = {"intermediate": target.intermediate_roundings[0], "hidden": target.hidden_roundings[0]}
    stack = ReferenceStack(StackOptions(emulate=padding, vetted=target.vetted))
    context = Context(target, stack.planner(), stack.loader())
    for claim in CHECKS:
        if not claim.not_applicable(target):
            evidence = claim.function()(stack, context)
            assert evidence.ok, f"{claim.id}: {evidence.summary} {evidence.findings[:1]}"


@st.composite
def _models(draw):
    """DeepSeek-V4's config.json with other sizes: heads in whole groups, blocks of 128 where linears are FP8."""
    groups, each = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4, 8, 16]))
    config = geometry.load("deepseek-v4-tiny").config | {
        "num_hidden_layers": 2,
        "compress_ratios": [draw(st.sampled_from([0, 4, 128])), 4, 0],
        "num_hash_layers": draw(st.integers(0, 2)),
        "num_attention_heads": groups * each,
        "o_groups": groups,
        "head_dim": 128,
        "o_lora_rank": 128,
        "q_lora_rank": 64,
        "hidden_size": 64,
        "vocab_size": draw(st.integers(1, 300)),
        "moe_intermediate_size": 32 * draw(st.integers(1, 12)),
        "n_shared_experts": draw(st.integers(1, 2)),
        "index_n_heads": 2,
        "index_head_dim": 64,
    }
    backend = draw(st.sampled_from(list(hardware_profiles.backends().values())))
    model = geometry.parse(config, "any")
    return Target(model, draw(st.integers(1, 5)), backend.name, None, None, backend.intermediate, backend.hidden)


@given(_models())
def test_a_right_loader_of_whole_models_is_never_accused(target):
    try:
        expected.axes(target.geometry, target.tp)
    except ValueError:
        assume(False)  # no whole groups a rank
    stack = ReferenceStack(StackOptions(emulate={"intermediate": target.intermediate_roundings[0]}))
    context = Context(target, stack.planner(), stack.loader(), parts={"model_loader": stack.model_loader})
    for claim in (one for one in WHOLE if not one.not_applicable(target)):
        evidence = claim.function()(stack, context)
        assert evidence.ok, f"{claim.id}: {evidence.summary} {evidence.findings[:1]}"
