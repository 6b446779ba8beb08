"""What is required comes from the must-pass lists, never from what happens to run."""

from __future__ import annotations

import pytest

import hardware_profiles
from conformance import catalogue
from conformance.errors import UsageError
from conformance.gate import schedule
from conformance.gate.settings import Settings, resolve
from conformance.stacks import registry
from hardware_profiles import MustPass
from tests.gate.fakes import FakeStack, claim, install, resolved

ALL = list(catalogue.claims())
LOADER = [name for name in ALL if name.startswith("loader.")]
PLAN = [name for name in ALL if name.startswith("plan.")]
GPUS = ("sm90", "sm100", "sm103", "sm120", "sm121")


@pytest.fixture(autouse=True)
def _stacks(monkeypatch):
    known = {name: registry._known()["reference"] for name in ("reference", "vllm")}
    monkeypatch.setattr(registry, "_known", lambda: known)


def _required(**settings) -> list[str]:
    return list(resolve(Settings(geometry="deepseek-v4-tiny", **settings)).required)


def test_the_harness_on_its_own_stack_is_asked_what_that_can_do():
    """All claims that have checks, those of plan and loader at least."""
    due = [c.id for c in catalogue.claims().values() if c.check]
    assert {"plan", "loader"} <= {catalogue.get(i).layer for i in due}
    assert _required(profile="cpu") == _required(emulate="sm120") == due


#: What a MoE of MXFP4 weights needs of the quant layer, with BF16 activations and with MXFP8.
_DECODED = {"quant.e2m1.decode", "quant.e8m0.decode", "quant.mxfp4.dequantize"}
_MXFP8 = {name for name in ALL if name.startswith("quant.mxfp8.")}
_MXFP8 |= {*_DECODED, "quant.layout.swizzle", "quant.layout.experts"}


#: Not every stack registers operators, or takes calls from two threads: those of one that does are judged, and of none
#: are they required.
_OPTIONAL = {name for name in ALL if name.startswith("graph.op.")} | {"graph.jit.threads"}


#: Calls of NVFP4 that bind, by the profiles that have its products.
_CALLS = {p: {f"quant.call.{p[:-1]}0"} for p in ("sm100", "sm103", "sm120", "sm121")}


def _unused(profile: str) -> set[str]:
    quant = {name for name in ALL if name.startswith("quant.")} - (_DECODED if profile == "sm90" else _MXFP8)
    return (quant | _OPTIONAL) - _CALLS.get(profile, set())


GUARDS = {name for name in PLAN if name.startswith("plan.guard.")}


@pytest.mark.parametrize(
    ("profile", "tp", "left_out"),
    [
        ("sm120", "3", set()),
        ("sm100", "2", {*GUARDS, "plan.draft.guard"} - {"plan.guard.expert_parallel"}),
        ("sm103", "8", {*GUARDS, "plan.draft.guard"} - {"plan.guard.expert_parallel"}),
        ("sm90", "4", {*GUARDS, "plan.draft.guard"}),
        ("sm90", "3", set()),
    ],
)
@pytest.mark.parametrize("policy", ["full", "release"])
def test_what_a_gpu_is_asked_of_v4_flash(profile, tp, left_out, policy):
    """At TP3 every guard; where nothing is padded the guards of virtual TP have nothing to say."""
    run = resolve(Settings(profile=profile, tp=tp, policy=policy))
    assert set(ALL) - set(run.required) == left_out | _unused(profile)
    here = {name for name in left_out if not catalogue.get(name).not_applicable(run.target)}
    assert not here, "left out although it applies"


@pytest.mark.parametrize("stack", ["vllm", "vllm,plan=reference"])
def test_a_real_stack_on_a_cpu_is_asked_for_everything(stack):
    """So no CPU alone ever lets one go live."""
    assert _required(profile="cpu", stack=stack) == ALL


@pytest.mark.parametrize("profile", GPUS)
def test_a_gpu_is_asked_for_every_layer(profile):
    assert _required(profile=profile) == [name for name in ALL if name not in _unused(profile)]
    assert {name.split(".")[0] for name in ALL} == set(catalogue.LAYERS)


@pytest.mark.parametrize("profile", ["cpu", *GPUS])
def test_the_audit_asks_for_offsets_and_a_moe_test(profile):
    """Whatever is cut must lie where it is due. What a loader does about a wrong checkpoint is none of the audit's."""
    required = _required(profile=profile, policy="audit")
    loads = [name for name in LOADER if catalogue.get(name).group in ("loader.moe", "loader.model")]
    assert set(loads) <= set(required)
    assert not [name for name in required if name.startswith(("loader.checkpoint.", "loader.files.", "plan."))]
    assert [name for name in required if not name.startswith("loader.")] == ["moe.tp3.reference"]


@pytest.mark.parametrize("profile", GPUS)
def test_release_asks_what_full_does(profile):
    assert _required(profile=profile, policy="release") == _required(profile=profile)


def test_layers_narrow_the_scope_and_not_what_is_required():
    assert _required(profile="cpu", layers="plan") == _required(profile="cpu")
    run = resolve(Settings(geometry="deepseek-v4-tiny", profile="cpu", layers="plan"))
    assert [c.id for c in schedule.planned(run)] == PLAN


def test_a_pattern_that_matches_nothing_is_an_error(monkeypatch):
    lists = (MustPass("full", "*", "*", (), ("plan.*", "laoder.*")),)
    broken = hardware_profiles.load("cpu")._replace(must_pass=lists)
    monkeypatch.setattr(hardware_profiles, "load", lambda name: broken)
    with pytest.raises(UsageError, match=r"hardware_profiles/cpu.toml: .*'laoder\.\*' matches no claim"):
        _required(profile="cpu")


@pytest.mark.parametrize("profile", ["cpu", *GPUS])
def test_every_list_that_ships_matches_something(profile):
    for entry in hardware_profiles.load(profile).must_pass:
        assert catalogue.matching(entry.claims)


def test_without_a_list_everything_is_required(monkeypatch):
    lists = (MustPass("full", "*", "gpt-oss-120b", (3,), ("plan.*",)),)
    broken = hardware_profiles.load("cpu")._replace(must_pass=lists)
    monkeypatch.setattr(hardware_profiles, "load", lambda name: broken)
    assert _required(profile="cpu") == ALL


@pytest.mark.parametrize(
    ("entry", "applies"),
    [
        (MustPass("full", "*", "*", (), ()), True),
        (MustPass("audit", "*", "*", (), ()), False),
        (MustPass("full", "vllm", "*", (), ()), True),
        (MustPass("full", "reference", "*", (), ()), False),
        (MustPass("full", "*", "deepseek-v4-flash", (), ()), True),
        (MustPass("full", "*", "deepseek-v4-pro", (), ()), False),
        (MustPass("full", "*", "*", (2, 3), ()), True),
        (MustPass("full", "*", "*", (4,), ()), False),
    ],
)
def test_which_list_applies(entry, applies):
    assert entry.applies("full", "vllm", "deepseek-v4-flash", 3) is applies


def test_the_first_list_that_applies_counts():
    lists = (MustPass("full", "*", "*", (4,), ("a",)), MustPass("full", "*", "*", (), ("b",)))
    profile = hardware_profiles.load("cpu")._replace(must_pass=lists)
    assert profile.required("full", "vllm", "m", 4) == ("a",)
    assert profile.required("full", "vllm", "m", 3) == ("b",)
    assert profile.required("audit", "vllm", "m", 3) is None


def test_claims_without_a_check_run_only_where_they_are_required(monkeypatch):
    install(monkeypatch, [claim("plan.a"), claim("loader.b"), claim("moe.c", check=""), claim("moe.d")])
    monkeypatch.setattr(registry, "_known", lambda: {"reference": FakeStack(), "fake": FakeStack()})
    assert [c.id for c in schedule.planned(resolved(stack="reference"))] == ["plan.a", "loader.b", "moe.d"]
    assert [c.id for c in schedule.planned(resolved(stack="fake"))] == ["plan.a", "loader.b", "moe.c", "moe.d"]


def test_the_audit_runs_its_own_claims_only(monkeypatch):
    install(monkeypatch, [claim("plan.a"), claim("loader.b"), claim("moe.tp3.reference", check=""), claim("moe.d")])
    assert [c.id for c in schedule.planned(resolved(policy="audit"))] == ["loader.b", "moe.tp3.reference"]


def test_a_selection_chooses_among_the_planned(monkeypatch):
    install(monkeypatch, [claim("plan.a"), claim("loader.b")])
    assert [c.id for c in schedule.planned(resolved(), {"loader.b", "moe.unknown"})] == ["loader.b"]
    assert schedule.planned(resolved(), set()) == []
