"""The loader's faults, seen through the conversion; formats of the reference stack against the references'."""

from __future__ import annotations

import msgspec
import pytest
import torch

from conformance import catalogue
from conformance.context import Context
from conformance.errors import Blocked, NotSupported
from conformance.faults import prepare
from conformance.faults.catalogue import FAULTS
from conformance.faults.seams import FaultyLoader
from conformance.faults.selftest import _target
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks import reference_numerics
from conformance.stacks.prepare_protocol import PrepareRequest
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from references import mxfp8

TARGET = _target("reference", "flashinfer_cutlass")
STACK = ReferenceStack(StackOptions(emulate={"intermediate": 128, "hidden": 128}, arithmetic="mxfp8"))
SM90_TARGET = _target("reference", "flashinfer_cutlass", "sm90")
SM90 = ReferenceStack(StackOptions(emulate={"intermediate": 128, "hidden": 128}, arithmetic="bf16"))
POSTLOAD = [claim for claim in catalogue.claims().values() if claim.group == "moe.postload"]


def context(loader=None, preparation=None, target=TARGET) -> Context:
    own = loader or STACK.loader()
    source = Context(target, STACK.planner(), own)
    return Context(
        target,
        STACK.planner(),
        own,
        {"preparation": preparation or STACK.preparation, "selection": STACK.selection},
        lambda: source.measured_maps("a loader"),
    )


def statuses(made: Context) -> dict[str, Status]:
    return {claim.id.removeprefix("moe."): evaluate(claim, STACK, made)[0] for claim in POSTLOAD}


def test_the_clean_stack_passes():
    assert set(statuses(context()).values()) == {Status.PASS}


_LOADER_FAULTS = [fault for fault in FAULTS.values() if fault.loader]


@pytest.mark.parametrize("fault", _LOADER_FAULTS, ids=lambda fault: fault.id)
def test_faults_of_the_loader_are_faults_of_the_prepared_bytes(fault):
    """Whatever the loader's claims on offsets and tails see, the claims on what the kernel is given see too."""
    loader = FaultyLoader(STACK.loader(), fault.loader)
    seen = Context(TARGET, STACK.planner(), loader)
    kinds = [c for c in catalogue.claims().values() if c.id.startswith("loader.w") and c.id.endswith(".offsets")]
    wrong = {c.id.split(".")[1] for c in kinds if evaluate(c, STACK, seen)[0] is Status.FAIL}
    found = statuses(context(loader))
    failing = {name.removeprefix("postload.") for name, status in found.items() if status is Status.FAIL}
    assert wrong <= failing, "a shifted slice is still shifted after conversion"
    assert found["postload.bijection"] is Status.PASS, "the conversion itself is right"
    assert found["postload.form"] is Status.PASS


def test_a_loader_that_cannot_be_measured_blocks_nothing():
    def refuse():
        raise Blocked("the stack refuses to build it")

    made = Context(TARGET, STACK.planner(), STACK.loader(), {"preparation": STACK.preparation}, refuse)
    assert set(statuses(made).values()) == {Status.PASS}
    assert "cannot be measured (the stack refuses to build it)" in made.given_maps.origin


def test_sm90s_clean_stack_passes():
    assert set(statuses(context(preparation=SM90.preparation, target=SM90_TARGET)).values()) == {Status.PASS}


@pytest.mark.parametrize(("made", "target"), [(SM90, TARGET), (STACK, SM90_TARGET)], ids=["bf16", "mxfp8"])
def test_a_stack_does_not_choose_what_it_is_held_to(made, target):
    """Prepared, and right, for another arithmetic than the profile's: that proves nothing of this profile."""
    found = statuses(context(preparation=made.preparation, target=target))
    assert set(found.values()) == {Status.NOT_SUPPORTED}


def test_a_layer_that_makes_no_whole_blocks_fails():
    raw = ReferenceStack(StackOptions(emulate={"intermediate": 32, "hidden": 128}, arithmetic="bf16"))
    found = statuses(context(preparation=raw.preparation, target=SM90_TARGET))
    assert set(found.values()) == {Status.FAIL}


def test_another_arithmetic_has_no_layout():
    stack = ReferenceStack(StackOptions(emulate={"intermediate": 128, "hidden": 256}, arithmetic="bf16_steps"))
    with pytest.raises(NotSupported, match="emulates no layout of weights for bf16_steps"):
        stack.preparation().open(PrepareRequest(TARGET.geometry, 3, 0, "marlin", (9, 0), 2, 96))


@pytest.mark.parametrize(
    ("layout", "capability", "arithmetic", "words"),
    [
        ("as loaded", None, "bf16", "reads weights as they are loaded"),
        ("cutlass", None, "bf16", ""),
        ("", (12, 0), "mxfp8", "no recipe is known"),
        ("cutlass", (9, 0), "bf16", ""),
        ("cutlass", None, "mxfp8", ""),
    ],
)
def test_where_the_claims_apply(layout, capability, arithmetic, words):
    target = msgspec.structs.replace(TARGET, layout=layout, capability=capability, arithmetic=arithmetic)
    for claim in POSTLOAD:
        reason = claim.not_applicable(target)
        assert words in reason
        assert bool(reason) == bool(words)


def test_a_dirty_tail_is_no_matter_of_logical_bytes():
    found = statuses(context(preparation=lambda: prepare.FaultyPreparation(STACK.preparation(), prepare.dirty_tail)))
    assert found["postload.w13"] is Status.PASS
    assert found["postload.tails"] is Status.FAIL


def test_the_reference_stacks_mxfp8_is_the_references():
    rng = torch.Generator().manual_seed(7)
    x = torch.randn(64, 4096, generator=rng) * torch.exp2(torch.randint(-60, 60, (64, 1), generator=rng).float())
    x[3], x[4] = 0, 2.0**-122
    x[5, ::32] = 448.0 * 2**20
    assert torch.equal(reference_numerics.to_mxfp8(x), mxfp8.rounded(x))
