"""The layer under the gate: wrong calls, a real stack without a model, and records that an earlier run left."""

from __future__ import annotations

import msgspec
import pytest

from conformance import catalogue, geometry
from conformance.e2e import opening
from conformance.errors import NotSupported, UsageError
from conformance.gate.gate import run_gate
from conformance.gate.settings import Settings, resolve
from conformance.gate.verdict import Word
from conformance.stacks.engine_protocol import EngineRequest
from conformance.stacks.vllm import engine
from conformance.target import Target


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("several sizes are for --layers e2e alone", {"tp": "2,3"}),
        ("names a size twice", {"tp": "3,3", "layers": "e2e"}),
        ("a whole number from 1 to", {"tp": "2,x", "layers": "e2e"}),
        ("a folder with config.json and", {"model": "/nowhere", "layers": "e2e"}),
        ("--limits are those of a --model", {"limits": "x.toml", "layers": "e2e"}),
        ("--backend is for GPUs", {"backend": "marlin", "layers": "e2e", "stack": "vllm", "profile": "cpu"}),
    ],
)
def test_wrong_calls(words, settings):
    with pytest.raises(UsageError, match=words):
        resolve(Settings(**settings))


def test_without_a_model_a_real_stack_is_not_judged(tmp_path):
    run = resolve(Settings(stack="vllm", profile="cpu", layers="e2e", run_dir=str(tmp_path / "run")))
    verdict, _ = run_gate(run, {"e2e.answers"})
    assert verdict.verdict is Word.INCOMPLETE
    (result,) = verdict.claims
    assert result.status == "not-run"


def test_a_model_too_large_for_the_reference_is_told_before_the_run():
    large = Target(
        geometry.load("deepseek-v4-flash"), 3, "cpu", None, None, (32,), (32,), model="somewhere", sizes=(2, 3)
    )
    needing = {c.id for c in catalogue.claims().values() if c.layer == "e2e" and c.not_applicable(large)}
    assert needing == {"e2e.reference.logprobs", "e2e.reference.blocks", "e2e.mtp.acceptance"}
    small = msgspec.structs.replace(large, model="")
    assert not any(c.not_applicable(small) for c in catalogue.claims().values() if c.layer == "e2e")


def test_the_reference_stack_goes(tmp_path):
    run = resolve(Settings(profile="cpu", layers="e2e", run_dir=str(tmp_path / "run")))
    verdict, path = run_gate(run)
    assert verdict.verdict is Word.GO, [r.reason for r in verdict.claims]
    assert sorted(p.name for p in (path / "e2e").iterdir()) == ["tp2.safetensors", "tp3.safetensors"]


@pytest.mark.parametrize(
    ("profile", "backend", "asked"), [("sm90", "marlin", "marlin"), ("sm90", None, ""), ("cpu", "marlin", "")]
)
def test_engines_on_a_gpu_are_started_with_the_backend_that_was_asked_for(profile, backend, asked):
    layers, tp = ("e2e", "1,2") if profile == "sm90" else ("loader,e2e", "2")
    found = resolve(Settings(profile=profile, stack="vllm", backend=backend, layers=layers, tp=tp))
    assert found.target.asked == asked
    request = EngineRequest("small", 2, backend=found.target.asked)
    assert engine._settings(request).get("moe_backend", "") == asked


@pytest.mark.parametrize(("gpus", "told"), [(3, "a GPU, capability 9.0"), (2, "TP3 needs 3 GPUs; here are 2")])
def test_too_few_gpus_are_told_before_an_engine_starts(gpus, told, monkeypatch):
    monkeypatch.setattr("hardware_profiles.found", lambda: ("sm90", "a GPU, capability 9.0"))
    monkeypatch.setattr("conformance.world.leases.visible", lambda: [f"GPU-{n}" for n in range(gpus)])
    target = resolve(Settings(profile="sm90", stack="vllm", layers="e2e", tp="2,3")).target
    if gpus == 3:
        assert opening._device(target) == told
        return
    with pytest.raises(NotSupported, match=told):
        opening._device(target)
