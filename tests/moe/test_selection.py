"""Choices of a stack that is not ours, against the profiles' data."""

from __future__ import annotations

import pytest

import hardware_profiles
from conformance import catalogue
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.faults.selftest import _target
from conformance.stacks.selection_protocol import UNASKED, Choice

TARGET = _target("reference", "flashinfer_cutlass")
PROFILES = [p for p in map(hardware_profiles.load, hardware_profiles.names()) if p.capability]


class Answers:
    """Right for every profile but where `wrong` says otherwise: {(capability, asked): fields}."""

    def __init__(self, wrong: dict | None = None, without: tuple[str, ...] = ()):
        self.wrong, self.without = wrong or {}, without

    def choices(self, request):
        made = []
        for profile in PROFILES:
            moe = profile.backend
            right = {
                UNASKED: {"backend": "X", "family": (profile.unasked or (moe,))[0], "scheme": "any"},
                moe: {"backend": "CUTLASS", "family": moe, "scheme": profile.arithmetic},
                "b12x": {"refused": "not on this device"},
            }
            if any(vetted == "b12x" for _, vetted in profile.vetted):
                right["b12x"] = {"backend": "B12X", "family": "b12x", "scheme": "mxfp8"}
            for asked, fields in right.items():
                if asked not in self.without:
                    given = self.wrong.get((profile.capability, asked), fields)
                    made.append(Choice(profile.capability, asked, **given))
        assert set(request.capabilities) == {p.capability for p in PROFILES}
        assert request.share == 96
        return made


def judge(kind: str, *answers, **more):
    context = Context(TARGET, None, None, {"selection": lambda: Answers(*answers, **more)})
    return catalogue.get(f"moe.selection.{kind}").function()(None, context)


@pytest.mark.parametrize("kind", ["asked", "unasked"])
def test_right_answers(kind):
    assert judge(kind).ok


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ({"backend": "CUTLASS", "family": "flashinfer_cutlass", "scheme": "bf16"}, "CUTLASS (bf16)"),
        ({"backend": "MARLIN", "family": "marlin", "scheme": "mxfp8"}, "MARLIN (mxfp8)"),
        ({"refused": "does not support"}, "does not support"),
    ],
)
def test_asked_in_vain(fields, got):
    evidence = judge("asked", {((12, 0), "flashinfer_cutlass"): fields})
    assert not evidence.ok
    assert evidence.findings[0].got == got
    assert "asked for flashinfer_cutlass on 12.0" in evidence.summary


def test_a_vetted_backend_that_is_refused():
    evidence = judge("asked", {((12, 0), "b12x"): {"refused": "no"}})
    assert [f.where for f in evidence.findings] == ["asked for b12x on 12.0"]


@pytest.mark.parametrize("fields", [{"backend": "TRITON", "family": "triton", "scheme": "bf16"}, {"refused": "no"}])
def test_left_alone_it_surprises(fields):
    evidence = judge("unasked", {((10, 3), UNASKED): fields})
    assert [f.where for f in evidence.findings] == ["left alone on 10.3"]


@pytest.mark.parametrize(("kind", "asked"), [("asked", "flashinfer_cutlass"), ("unasked", UNASKED)])
def test_what_cannot_be_asked_proves_nothing(kind, asked):
    with pytest.raises(NotSupported, match="cannot be asked here: No module named 'humming'"):
        judge(kind, {((9, 0), asked): {"lacking": "No module named 'humming'"}})


def test_a_name_that_the_stack_does_not_know():
    with pytest.raises(NotSupported, match="knows no MoE backend b12x, which profile sm120 names"):
        judge("asked", without=("b12x",))
