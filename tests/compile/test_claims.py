"""How compiled kernels are judged: by target, family, a block's means, and a baseline of exactly one toolchain."""

from __future__ import annotations

import msgspec
import pytest

import hardware_profiles
from conformance import catalogue, geometry
from conformance.context import Context
from conformance.errors import NotSupported, StackMissing
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.stacks.reference_compiler import ReferenceCompiler
from conformance.target import Target
from hardware_profiles import compiled as data
from suites.moe import compiled

CLAIMS = [c for c in catalogue.claims() if c.startswith("moe.compile.")]
TARGET = Target(
    geometry.load("deepseek-v4-flash"), 3, "flashinfer_cutlass", None, (12, 0), (128,), (128,), arithmetic="mxfp8"
)


class Changed(ReferenceCompiler):
    def __init__(self, change):
        self._change = change

    def compile(self, unit):
        result = super().compile(unit)
        self._change(unit, result)
        return result


def _judge(claim, compiler=ReferenceCompiler, target=TARGET):
    context = Context(target, None, None, {"compiler": compiler})
    return evaluate(catalogue.get(f"moe.compile.{claim}"), ReferenceStack(StackOptions()), context)


@pytest.mark.parametrize("claim", CLAIMS)
def test_right_kernels_pass_and_name_their_toolchain(claim):
    status, reason, evidence = _judge(claim.rpartition(".")[2])
    assert (status, reason) == (Status.PASS, "")
    assert evidence.measured["toolchains"] and any("toolchain:" in note for note in evidence.notes)
    assert "nothing was launched" in evidence.method


def test_the_upcast_is_told_as_what_it_is():
    _, _, evidence = _judge("triton")
    assert any("upcast in software and multiplied in BF16" in note for note in evidence.notes)


def test_an_upcast_where_none_is_known_fails():
    def change(unit, result):
        if unit.route == "triton" and unit.kind == "kernel":
            result.kernels[0].sass, result.kernels[0].ptx = dict(result.kernels[1].sass), dict(result.kernels[1].ptx)

    status, reason, _ = _judge("triton", lambda: Changed(change))
    assert status is Status.FAIL and "HMMA.16816.F32.BF16" in reason


def test_a_block_scaled_product_where_an_upcast_is_known_passes():
    """A later Triton may have it: that is no failure, and no note."""

    def change(unit, result):
        kernel = next((k for k in result.kernels if k.name == "e4m3 x e2m1"), None)
        if kernel:
            kernel.sass = {"QMMA.SF.16832.F32.E4M3.E2M1.E8": 64}
            name = "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e2m1.f32.ue8m0"
            kernel.ptx = {name: 64}

    status, _, evidence = _judge("triton", lambda: Changed(change))
    assert status is Status.PASS and not any("upcast" in note for note in evidence.notes)


def test_another_toolchain_is_held_to_hard_limits_alone():
    def change(unit, result):
        result.toolchain["nvcc"] = "13.5.37"
        if unit.kind == "kernel":
            result.kernels[0].spill_stores = 400

    status, _, evidence = _judge("baseline", lambda: Changed(change))
    assert status is Status.PASS
    assert any("no baseline of 128x128x128 NONE on sm_120a for this toolchain" in note for note in evidence.notes)
    assert evidence.expected == []


def test_registers_are_held_to_the_register_file_with_any_toolchain():
    def change(unit, result):
        result.toolchain["nvcc"] = "13.5.37"
        if unit.kind == "kernel":
            result.kernels[0].registers = 176

    status, reason, _ = _judge("baseline", lambda: Changed(change))
    assert status is Status.FAIL and "176 x 384 threads" in reason


def test_fewer_spills_than_recorded_are_no_failure():
    def change(unit, result):
        if unit.kind == "kernel":
            result.kernels[0].spill_stores = result.kernels[0].stack = 0

    assert _judge("baseline", lambda: Changed(change))[0] is Status.PASS


def test_no_tile_at_all_is_no_pass():
    def change(unit, result):
        result.kernels.clear()

    assert [_judge(c.rpartition(".")[2], lambda: Changed(change))[0] for c in CLAIMS] == [Status.FAIL] * len(CLAIMS)


def test_a_missing_toolchain_is_not_run():
    def missing():
        raise StackMissing("no nvcc; install one: pip install nvidia-cuda-nvcc")

    status, reason, _ = _judge("tiles", missing)
    assert status is Status.NOT_RUN and "pip install" in reason


def test_a_stack_without_a_compiler():
    context = Context(TARGET, None, None)
    status, reason, _ = evaluate(catalogue.get("moe.compile.mma"), ReferenceStack(StackOptions()), context)
    assert status is Status.NOT_SUPPORTED and "no `compiler()`" in reason


def test_a_unit_is_compiled_once_for_all_claims():
    asked = []

    class Counting(ReferenceCompiler):
        def compile(self, unit):
            asked.append(unit)
            return super().compile(unit)

    context = Context(TARGET, None, None, {"compiler": Counting})
    for claim in CLAIMS:
        evaluate(catalogue.get(claim), ReferenceStack(StackOptions()), context)
    assert len(asked) == len(set(asked)) == 7


@pytest.mark.parametrize("name", ["sm90", "sm100", "sm103", "sm120", "sm121"])
def test_every_gpu_profile_has_its_families_and_a_baseline(name):
    profile = hardware_profiles.load(name)
    target = data.arch(profile.capability)
    families = data.families(target)
    assert families is not None and (families.cute is not None) == (profile.arithmetic == "mxfp8")
    assert set(families.triton) == {"e4m3 x e4m3", "e4m3 x e2m1", "e2m1 x e2m1"}
    assert any((b.route, b.arch) == ("cutlass", target) for b in data.baselines())


def test_an_unknown_capability():
    context = Context(Target(TARGET.geometry, 3, "b", None, (8, 0), (128,), (128,)), None, None)
    with pytest.raises(NotSupported, match=r"8\.0"):
        compiled.target(context)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({"capability": None}, "the profile has no CUDA capability"),
        ({"arithmetic": None}, "not the profile's own MoE backend"),
        ({"arithmetic": "bf16"}, "activations are not quantised"),
    ],
)
def test_where_the_claims_do_not_apply(target, reason):
    changed = msgspec.structs.replace(TARGET, **target)
    assert reason in catalogue.get("moe.compile.cute").not_applicable(changed)


def test_the_claims_wait_for_nothing():
    assert "moe.compile" not in catalogue.dependencies()
