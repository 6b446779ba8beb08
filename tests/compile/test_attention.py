"""Sparse MLA's compiled kernels: what they multiply, what they take of a block, and records of two toolchains."""

from __future__ import annotations

import msgspec
import pytest

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks.protocols import StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.stacks.reference_compiler import ReferenceCompiler
from conformance.target import Target
from hardware_profiles import compiled as data

CLAIMS = ["target", "mma", "block", "baseline"]
SPARSE_MLA = "FLASHINFER_MLA_SPARSE_DSV4"
TARGET = Target(geometry.load("deepseek-v4-flash"), 3, "flashinfer_cutlass", SPARSE_MLA, (12, 0), (128,), (128,))


class Changed(ReferenceCompiler):
    def __init__(self, change):
        self._change = change

    def compile(self, unit):
        result = super().compile(unit)
        self._change(result)
        return result


def _judge(claim, change=lambda result: None):
    context = Context(TARGET, None, None, {"compiler": lambda: Changed(change)})
    status, reason, evidence = evaluate(
        catalogue.get(f"attention.compile.{claim}"), ReferenceStack(StackOptions()), context
    )
    return status, evidence.summary if evidence else reason, evidence


@pytest.mark.parametrize("claim", CLAIMS)
def test_right_kernels_pass_and_name_their_toolchain(claim):
    status, _, evidence = _judge(claim)
    assert status is Status.PASS
    assert evidence.measured["toolchains"] == [{"nvcc": "13.0.88", "ptxas": "13.0.88", "flashinfer": "0.7.2.post1"}]


def test_every_kernel_and_target_is_recorded_for_two_toolchains():
    found = {(b.arch, b.kernel, b.toolchain["nvcc"]) for b in data.baselines() if b.route == "attention"}
    assert {nvcc for _, _, nvcc in found} == {"13.0.88", "13.5.37"}
    assert len(found) == 2 * 2 * 2


@pytest.mark.parametrize(("nvcc", "due"), [("13.5.37", Status.FAIL), ("13.9.1", Status.NOT_SUPPORTED)])
def test_a_toolchain_is_held_to_its_own_record_alone(nvcc, due):
    """96 registers are right for 13.0.88 and more than 13.5.37's 86; of 13.9.1 nothing is known, which is no pass."""

    def change(result):
        result.toolchain |= {"nvcc": nvcc, "ptxas": nvcc}

    status, words, _ = _judge("baseline", change)
    assert status is due
    if due is Status.NOT_SUPPORTED:
        assert f"nvcc {nvcc}" in words and "recorded: nvcc 13.0.88" in words and "nvcc 13.5.37" in words
    for claim in ("target", "mma", "block"):
        assert _judge(claim, change)[0] is Status.PASS


def _second(**fields):
    def change(result):
        result.kernels[1] = msgspec.structs.replace(result.kernels[1], **fields)

    return change


@pytest.mark.parametrize(
    ("claim", "fields", "words"),
    [
        ("target", {"target": "sm_121a"}, "sm_121a; a binary for sm_120a due"),
        ("mma", {"sass": {"HMMA.16816.F32.BF16": 100}}, "100 HMMA.16816.F32.BF16; products"),
        ("mma", {"sass": {"FMMA.1688": 1, "QMMA.16832.F32.E4M3.E4M3": 2}}, "1 FMMA.1688"),
        ("mma", {"sass": {}, "ptx": {}}, "no matrix-multiply instruction"),
        ("block", {"shared": 101377}, "101,377 bytes of shared memory; at most 101,376"),
        ("block", {"threads": 1025}, "1025 threads"),
        ("block", {"threads": 512, "registers": 136}, "136 x 512 threads"),
        ("block", {"shared": None}, "not measured"),
        ("baseline", {"spill_loads": 16}, "16; spill loads of at most 12"),
        ("baseline", {"stack": None}, "None; stack of at most 8"),
    ],
)
def test_what_is_wrong_is_told(claim, fields, words):
    status, told, _ = _judge(claim, _second(**fields))
    assert status is Status.FAIL and words in told


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"capability": None}, "no CUDA capability"),
        ({"capability": (10, 0)}, "come as binaries"),
        ({"capability": (9, 0), "attention": "FLASHMLA_SPARSE_DSV4"}, "come as binaries"),
        ({"attention": "B12X_MLA_SPARSE"}, "B12X_MLA_SPARSE attention is not FlashInfer's sparse MLA"),
        ({"capability": (12, 1)}, ""),
    ],
)
def test_where_there_is_nothing_to_compile(changes, why):
    target = msgspec.structs.replace(TARGET, **changes)
    told = catalogue.get("attention.compile.mma").not_applicable(target)
    assert why in told and bool(told) == bool(why)
