"""The FlashInfer adapter's own preparation: its helpers, replaced by the recipes, on this machine's memory."""

from __future__ import annotations

import pytest
import torch

from conformance import catalogue
from conformance.context import Context
from conformance.errors import NotSupported, StackRefused
from conformance.faults.selftest import _target
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks.flashinfer.library import Library
from conformance.stacks.flashinfer.preparation import Device, FlashInferPreparation
from conformance.stacks.prepare_protocol import PrepareRequest
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from references import prepared, prepared_sm90

TARGETS = {name: _target("reference", "flashinfer_cutlass", name) for name in ("sm90", "sm120")}
POSTLOAD = [claim for claim in catalogue.claims().values() if claim.group == "moe.postload"]


def _each(function):
    return lambda data, *rest: torch.stack([function(one) for one in data])


def _library(**changed) -> Library:
    def never(*given, **named):
        raise AssertionError("nothing but weights is prepared")

    right = Library(
        never,
        never,
        lambda scales: torch.cat([prepared.interleaved(one) for one in scales]),
        _each(prepared_sm90.interleaved),
        _each(prepared_sm90.folded),
    )
    return right._replace(**changed)


def _statuses(profile: str, library: Library) -> dict[str, Status]:
    target = TARGETS[profile]
    device = Device("cpu", target.capability, "memory of this machine")
    stack = ReferenceStack(StackOptions())
    made = Context(
        target, stack.planner(), stack.loader(), {"preparation": lambda: FlashInferPreparation(device, lambda: library)}
    )
    return {claim.id.removeprefix("moe.postload."): evaluate(claim, stack, made)[0] for claim in POSTLOAD}


@pytest.mark.parametrize("profile", TARGETS)
def test_the_adapter_hands_over_what_is_due(profile):
    assert set(_statuses(profile, _library()).values()) == {Status.PASS}


@pytest.mark.parametrize(
    ("profile", "changed", "failing"),
    [
        ("sm90", {"interleave_weights": lambda data, kind: data}, {"bytes", "w13", "w2", "bijection"}),
        ("sm90", {"interleave_scales": lambda data: data}, {"bytes", "w13_scale", "w2_scale", "form"}),
        ("sm120", {"block_scale_interleave": lambda data: data}, {"bytes", "w13_scale", "w2_scale"}),
    ],
)
def test_a_helper_that_does_nothing_is_seen(profile, changed, failing):
    found = _statuses(profile, _library(**changed))
    assert {name for name, status in found.items() if status is Status.FAIL} >= failing


def _open(here: tuple[int, int] | None, wanted: tuple[int, int] | None, library=_library):
    request = PrepareRequest(TARGETS["sm90"].geometry, 3, 0, "flashinfer_cutlass", wanted, 2, 96)
    return FlashInferPreparation(Device("cpu", here, "NVIDIA H200"), library).open(request)


@pytest.mark.parametrize(
    ("here", "wanted", "words"),
    [
        (None, (9, 0), r"one of capability 9\.0 is needed \(torch sees none here\); run the gate there"),
        ((9, 0), (12, 0), r"one of capability 12\.0 is needed \(NVIDIA H200, 9\.0\)"),
        ((9, 0), None, "the profile has none"),
        ((8, 0), (8, 0), r"MXFP4 MoE runs on capability 9\.0"),
    ],
)
def test_another_machine_than_the_profiles(here, wanted, words):
    with pytest.raises(NotSupported, match=words):
        _open(here, wanted)


def test_what_the_library_raises_is_its_refusal():
    def refuse(data, kind):
        raise ValueError("scales must be divisible")

    layer = _open((9, 0), (9, 0), lambda: _library(interleave_weights=refuse))
    zeros = {n: torch.zeros((2, p.rows, p.cols), dtype=torch.uint8) for n, p in layer.info.loaded.items()}
    with pytest.raises(StackRefused, match="rearranging weights: ValueError: scales must be divisible"):
        layer.convert(zeros)
