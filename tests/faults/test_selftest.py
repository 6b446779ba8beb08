"""The kill matrix: complete on the clean harness, and broken by every check that goes blind."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import settings

import hardware_profiles
from conformance import catalogue
from conformance.errors import UsageError
from conformance.faults import selftest
from conformance.faults.catalogue import FAULTS
from conformance.result import Evidence, Status
from conformance.stacks.protocols import StackOptions

CHECKED = {c.id: c for c in catalogue.claims().values() if c.check}
#: Blinding a check runs its layer twice; kernels take seconds, so by default only some of theirs.
_NIGHTLY = settings.default.max_examples > 100
BLINDED = [
    name for n, (name, c) in enumerate(CHECKED.items()) if _NIGHTLY or c.layer in ("plan", "loader") or n % 7 == 0
]


def _run(only=(), backend=None) -> selftest.Report:
    return selftest.run("reference", StackOptions(), list(only), backend)


def test_every_fault_is_caught_and_the_clean_stack_is_silent():
    report = _run()
    assert {p.id: p.outcome for p in report.faults} == dict.fromkeys(FAULTS, "caught")
    assert report.clean == {}
    assert report.exit_code == 0
    assert report.counts["caught"] == len(FAULTS)
    for planted in report.faults:
        assert planted.caught and planted.caught_by == list(FAULTS[planted.id].claims)
        assert not set(planted.also) & set(planted.claims)


def test_every_check_has_a_fault_and_every_fault_a_check():
    named = {name for fault in FAULTS.values() for name in fault.claims}
    assert named == set(CHECKED)
    for fault in FAULTS.values():
        seams = set(fault._fields) - {"id", "what", "claims", "seen_in", "rounded", "profile", "backend", "geometry"}
        assert len([seam for seam in seams if getattr(fault, seam)]) == 1
        assert {catalogue.get(name).layer for name in fault.claims} == {fault.layer}


@pytest.mark.parametrize("blind", BLINDED)
def test_a_check_gone_blind_lets_its_faults_live(monkeypatch, blind):
    """One that always passes: the selftest fails and names both the fault and the claim that spared it."""
    module, name = CHECKED[blind].check.split(":")
    monkeypatch.setattr(import_module(module), name, lambda stack, context: Evidence(ok=True, summary="blind"))
    fault = next(f for f in FAULTS.values() if blind in f.claims)
    report = _run([fault.id])
    (planted,) = report.faults
    assert (planted.id, planted.outcome, planted.caught) == (fault.id, "alive", False)
    assert planted.spared == [blind]
    assert report.exit_code == 1


def test_a_check_that_always_fails_is_an_alarm(monkeypatch):
    module, name = CHECKED["loader.w2.offsets"].check.split(":")
    monkeypatch.setattr(import_module(module), name, lambda stack, context: Evidence(ok=False, summary="red"))
    report = _run(["half-fix"])
    assert report.clean == {"loader.w2.offsets": "fail: red"}
    assert report.exit_code == 1
    assert report.faults[0].fails_clean == ["loader.w2.offsets"]
    assert "loader.w2.offsets" not in report.faults[0].caught_by


def test_a_check_that_cannot_measure_has_caught_nothing(monkeypatch):
    module, name = CHECKED["loader.w2.tails"].check.split(":")
    real = getattr(import_module(module), name)

    def tired(stack, context):
        evidence = real(stack, context)
        if not evidence.ok:
            raise OSError("no memory")
        return evidence

    monkeypatch.setattr(import_module(module), name, tired)
    report = _run(["half-fix"])
    assert (report.faults[0].outcome, report.exit_code) == ("not planted", 3)


@pytest.mark.parametrize(
    ("stack", "alarms", "counts", "due"),
    [
        ("reference", {}, {"caught": 2}, 0),
        ("reference", {}, {"caught": 2, "no fault here": 1}, 0),
        ("reference", {}, {"caught": 1, "alive": 1}, 1),
        ("reference", {"plan.accepted": "fail"}, {"caught": 2}, 1),
        ("reference", {}, {"caught": 1, "not planted": 1}, 3),
        ("reference", {}, {}, 3),
        ("vllm", {"plan.accepted": "fail"}, {"caught": 2}, 0),
        ("vllm", {"plan.accepted": "fail"}, {"caught": 1, "fails clean": 1}, 3),
        ("vllm", {}, {"caught": 1, "not judged": 1}, 3),
        ("vllm", {}, {"caught": 1, "alive": 1, "not planted": 1}, 1),
    ],
)
def test_exit_codes(stack, alarms, counts, due):
    assert selftest._exit_code(stack, alarms, dict.fromkeys(selftest.OUTCOMES, 0) | counts) == due


@pytest.mark.parametrize("backend", ["b12x", "flashinfer_trtllm", "emulation"])
def test_other_backends(backend):
    """Where the kernel is as wide as a rank's share, a stride of the kernel's width is right: no fault, no alarm."""
    rounded = {f.id for f in FAULTS.values() if f.rounded}
    report = _run(["half-fix", "w2-unit-blind-bytes", "floor-division", "stale-tail", "kernel-too-wide"], backend)
    same = bool({1, 32} & set(hardware_profiles.backends()[backend].intermediate))
    assert {p.id: p.outcome for p in report.faults} == {
        p.id: "no fault here" if same and p.id in rounded else "caught" for p in report.faults
    }
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("unknown fault 'half-fxi'; nearest: half-fix ", lambda: _run(["half-fxi"])),
        ("unknown backend 'cutlas'; nearest: flashinfer_cutlass ", lambda: _run([], "cutlas")),
        ("unknown stack 'refrence'; nearest: reference ", lambda: selftest.run("refrence", StackOptions(), [], None)),
    ],
)
def test_unknown_names(words, call):
    with pytest.raises(UsageError, match=words):
        call()


def test_statuses_are_those_of_the_gate():
    """`fail` kills; an error, a timeout or a missing stack kills nothing."""
    assert {Status.FAIL, Status.CRASH} == selftest.NO_GO
