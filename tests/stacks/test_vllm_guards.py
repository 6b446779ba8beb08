"""Guards, draft and kernel choice of a real vLLM: see test_vllm.py for how it is named.

What any version must do is asserted for any; numbers of one version, only where that version is found.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

import hardware_profiles
from conformance import catalogue, errors
from conformance.context import Context
from conformance.gate.runner import evaluate
from conformance.gate.settings import Settings, resolve
from conformance.result import Evidence
from conformance.stacks.protocols import Axis, KernelChoice, PlanOutcome, PlanRequest, StackInfo
from conformance.stacks.vllm.stack import VllmStack

PYTHON = os.environ.get("CONFORMANCE_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="CONFORMANCE_VLLM_PYTHON names no interpreter with vllm")

CUTLASS = ("FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass")
B12X = ("B12X_MLA_SPARSE", "b12x")
PADDED = {
    "heads": Axis(64, 72, 24),
    "groups": Axis(8, 9, 3),
    "routed": Axis(2048, 2112, 704),
    "shared": Axis(2048, 2304, 768),
    "vocab": Axis(129280, 129408, 43136),
}


@pytest.fixture(scope="module")
def contexts(stack: VllmStack) -> dict[tuple[str, ...], Context]:
    return {}


def judged(
    stack: VllmStack, contexts: dict, claim: str, profile: str = "sm120", tp: int = 3, backend: str | None = None
) -> tuple[str, Evidence]:
    key = (profile, str(tp), backend or "")
    if key not in contexts:
        target = resolve(Settings(profile=profile, stack="vllm", tp=str(tp), backend=backend)).target
        contexts[key] = Context(target, stack.planner(), stack.loader())
    found = catalogue.get(claim)
    assert not found.not_applicable(contexts[key].target)
    status, reason, evidence = evaluate(found, stack, contexts[key])
    return str(status), evidence or Evidence(ok=False, summary=reason)


def ask(stack: VllmStack, pair: tuple[str, str], tp: int = 3, capability: Any = (12, 0), **more: Any) -> PlanOutcome:
    model = resolve(Settings(profile="cpu", stack="vllm")).target.geometry
    (answer,) = stack.planner().guards([PlanRequest(model, tp, capability, *pair, **more)])
    return answer


def choice(stack: VllmStack, backend: str, capability: Any, tp: int = 3) -> KernelChoice:
    model = resolve(Settings(profile="cpu", stack="vllm")).target.geometry
    return stack.planner().kernel(PlanRequest(model, tp, capability, None, backend), [704, 800])


def test_it_knows_backends(stack: VllmStack) -> None:
    known = stack.planner().backends()
    assert {"flashinfer_cutlass", "deep_gemm_mega_moe", "marlin"} <= set(known.moe)
    assert CUTLASS[0] in known.attention and "auto" not in known.moe


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (10, 3), (12, 0)])
def test_what_needs_no_padding_is_accepted_anywhere(stack: VllmStack, tp: int, draft: bool, capability: Any) -> None:
    for parallel in (False, True):
        answer = ask(stack, CUTLASS, tp, capability, expert_parallel=parallel, draft=draft)
        assert (answer.outcome, answer.padding in ("nothing", "no-layer")) == ("accepted", True), answer


def test_unknown_names_are_told_apart(stack: VllmStack) -> None:
    for draft in (False, True):
        answer = ask(stack, ("NONSENSE", "marlin"), 2, draft=draft)
        assert (answer.outcome, answer.padding) == ("refused", "unknown-backend")
        assert "no attention backend 'NONSENSE'" in answer.message


def test_a_draft_without_padding_keeps_its_sizes(stack: VllmStack) -> None:
    answer = ask(stack, CUTLASS, 2, draft=True)
    due = {"heads": Axis(64, 64, 32), "groups": Axis(8, 8, 4), "routed": Axis(2048, 2048, 1024)}
    assert (answer.axes, answer.origin) == (due, "draft")


def test_schemes_of_target_and_draft(stack: VllmStack, contexts: dict) -> None:
    for tp, profile in ((3, "sm120"), (2, "cpu")):
        status, evidence = judged(stack, contexts, "plan.draft.quant", profile, tp)
        assert status == "pass", evidence.summary
        assert evidence.measured["routed experts"] == "Mxfp4MoEMethod"
        assert {v for k, v in evidence.measured.items() if k != "routed experts"} == {"Fp8LinearMethod [128, 128]"}
        assert {"embedding projection", "hidden projection"} <= set(evidence.measured)


@pytest.mark.parametrize(
    ("backend", "capability", "picked"),
    [
        ("flashinfer_cutlass", (12, 0), "FLASHINFER_CUTLASS_MXFP4_MXFP8"),
        ("flashinfer_cutlass", (10, 0), "FLASHINFER_CUTLASS_MXFP4_MXFP8"),
        ("flashinfer_cutlass", (9, 0), "FLASHINFER_CUTLASS_MXFP4_BF16"),
        ("deep_gemm", (10, 0), "DEEPGEMM_MXFP4"),
        ("deep_gemm", (12, 0), "DEEPGEMM_MXFP4"),
        ("deep_gemm", (9, 0), ""),
        ("flashinfer_trtllm", (12, 0), ""),
        ("flashinfer_trtllm", (9, 0), ""),
        ("cpu", (12, 0), ""),
        ("marlin", (12, 0), "MARLIN"),
    ],
)
def test_the_oracle_knows_devices_whatever_is_installed(
    stack: VllmStack, backend: str, capability: Any, picked: str
) -> None:
    """And one capability's answer is not kept for the next."""
    found = choice(stack, backend, capability)
    assert found.backend == picked, found
    assert bool(found.refused) is not bool(picked)


def test_b12x_is_for_12_x_alone(stack: VllmStack) -> None:
    assert choice(stack, "b12x", (12, 0)).backend.startswith("B12X")
    assert choice(stack, "b12x", (10, 0)).backend == ""
    assert choice(stack, "b12x", (12, 1)).backend.startswith("B12X")


@pytest.mark.parametrize("profile", ["sm90", "sm100", "sm103", "sm120", "sm121"])
def test_each_profiles_own_backend_runs_in_its_arithmetic(stack: VllmStack, contexts: dict, profile: str) -> None:
    for claim in ("plan.backend", "plan.kernel.activation", "plan.kernel.rounding"):
        status, evidence = judged(stack, contexts, claim, profile, 2)
        assert status == "pass", evidence.summary


@pytest.mark.parametrize("backend", sorted(hardware_profiles.backends()))
def test_roundings_are_those_of_the_data(stack: VllmStack, contexts: dict, backend: str) -> None:
    """Without a capability no oracle is asked; a backend whose kernel class cannot be imported says so, and so does
    one that is none of MXFP4."""
    status, evidence = judged(stack, contexts, "plan.kernel.rounding", "cpu", 2, backend)
    if hardware_profiles.backends()[backend].arithmetic == "nvfp4":
        assert status == "not-supported" and "no backend in its MXFP4 oracle" in evidence.summary, evidence
        return
    assert status == "pass" or (status == "not-supported" and "cannot be imported" in evidence.summary), evidence


def test_every_plan_claim_that_applies_passes_at_tp2(stack: VllmStack, contexts: dict, info: StackInfo) -> None:
    """The audited commit's attention builds on CUDA alone."""
    for profile in ("sm120", "sm100", *(() if "virtual-tp" in info.capabilities else ("cpu",))):
        target = resolve(Settings(profile=profile, stack="vllm", tp="2")).target
        for claim in catalogue.claims().values():
            if claim.layer == "plan" and not claim.not_applicable(target):
                status, evidence = judged(stack, contexts, claim.id, profile, 2)
                assert status == "pass", (claim.id, evidence.summary)


@pytest.mark.usefixtures("stock")
@pytest.mark.parametrize(
    ("claim", "status"),
    [
        ("plan.guard.vetted", "fail"),
        ("plan.guard.pairs", "pass"),
        ("plan.guard.platforms", "pass"),
        ("plan.guard.silent", "pass"),
        ("plan.guard.expert_parallel", "pass"),
        ("plan.guard.megamoe", "pass"),
        ("plan.draft.axes", "not-supported"),
        ("plan.draft.guard", "fail"),
        ("plan.backend", "pass"),
    ],
)
def test_stock_at_tp3_refuses_everything_with_an_error(
    stack: VllmStack, contexts: dict, claim: str, status: str
) -> None:
    found, evidence = judged(stack, contexts, claim)
    assert found == status, evidence.summary
    assert ask(stack, CUTLASS).padding == "no-layer"


@pytest.mark.usefixtures("audited")
def test_audited_refuses_the_vetted_pair(stack: VllmStack, contexts: dict) -> None:
    status, evidence = judged(stack, contexts, "plan.guard.vetted")
    assert (status, len(evidence.findings)) == ("fail", 1)
    assert "requires the native B12X MoE" in evidence.findings[0].got
    assert (ask(stack, B12X).outcome, ask(stack, B12X).padding) == ("accepted", "planned")


@pytest.mark.usefixtures("audited")
def test_audited_accepts_any_attention_beside_b12x(stack: VllmStack, contexts: dict) -> None:
    status, evidence = judged(stack, contexts, "plan.guard.pairs")
    (finding,) = evidence.findings
    others = len(stack.planner().backends().attention) - 1
    assert (status, finding.got) == ("fail", "accepted")
    assert finding.where.startswith(f"any of {others} (") and finding.where.endswith("attention with b12x MoE on 12.0")


@pytest.mark.usefixtures("audited")
def test_audited_on_other_platforms(stack: VllmStack, contexts: dict) -> None:
    """B12X attention is accepted with and without any GPU, and 12.1 like 12.0."""
    status, evidence = judged(stack, contexts, "plan.guard.platforms")
    assert status == "fail"
    where = sorted(f.where.rsplit(" on ", 1)[1] for f in evidence.findings)
    assert where == ["10.0", "10.3", "12.1", "9.0", "no CUDA"]
    assert {f.got for f in evidence.findings} == {"accepted"}


@pytest.mark.usefixtures("audited")
def test_audited_passes_over_the_vetted_pair_in_silence(stack: VllmStack, contexts: dict) -> None:
    status, evidence = judged(stack, contexts, "plan.guard.silent")
    assert status == "fail"
    assert Counter(f.where.rsplit(" on ", 1)[1] for f in evidence.findings) == Counter(
        ["no CUDA", "9.0", "10.0", "10.3"]
    )
    assert all("silently ignored by the padding layer" in f.got for f in evidence.findings)
    for capability in (None, (9, 0), (10, 0)):
        answer = ask(stack, CUTLASS, capability=capability)
        assert (answer.outcome, answer.padding) == ("refused", "nothing")


@pytest.mark.usefixtures("audited")
def test_audited_rejects_expert_parallelism_and_megamoe(stack: VllmStack, contexts: dict) -> None:
    for claim in ("plan.guard.expert_parallel", "plan.guard.megamoe"):
        assert judged(stack, contexts, claim)[0] == "pass"
    assert "incompatible with expert parallelism" in ask(stack, B12X, expert_parallel=True).message
    assert "incompatible with DeepGEMM MegaMoE" in ask(stack, (B12X[0], "deep_gemm_mega_moe")).message


@pytest.mark.usefixtures("audited")
def test_audited_pads_the_draft_with_no_guard(stack: VllmStack, contexts: dict) -> None:
    status, evidence = judged(stack, contexts, "plan.draft.axes")
    assert (status, evidence.measured) == ("pass", {n: [a.original, a.padded, a.per_rank] for n, a in PADDED.items()})
    status, evidence = judged(stack, contexts, "plan.draft.guard")
    assert status == "fail"
    assert any("(the whole configuration is refused)" in f.got for f in evidence.findings)
    unguarded = ask(stack, CUTLASS, capability=(10, 0), draft=True)
    assert (unguarded.outcome, unguarded.padding, unguarded.axes) == ("refused", "planned", PADDED)


def test_a_planner_call_with_a_model_it_cannot_build_is_no_answer(stack: VllmStack) -> None:
    import msgspec

    model = resolve(Settings(profile="cpu", stack="vllm")).target.geometry
    broken = msgspec.structs.replace(model, config=model.config | {"architectures": ["NoSuchModel"], "model_type": "x"})
    with pytest.raises(errors.NotSupported, match="builds no ModelConfig"):
        stack.planner().guards([PlanRequest(broken, 2, (12, 0), *CUTLASS)])
