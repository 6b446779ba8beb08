"""`--nightly`: more batch sizes, none at all among them, through every claim that runs the random batches."""

from __future__ import annotations

import pytest
import torch

from conformance import catalogue
from conformance.gate.runner import Runner, repeat_command
from conformance.gate.settings import Settings, resolve
from conformance.result import Status
from conformance.stacks import reference_moe
from suites.moe import random_batch


def _run(monkeypatch, claim: str, nightly: bool):
    asked = set()
    real = reference_moe.ReferenceMoeLayer.run

    def run(self, x, *rest, **more):
        asked.add(len(x))
        real(self, x, *rest, **more)

    monkeypatch.setattr(reference_moe.ReferenceMoeLayer, "run", run)
    monkeypatch.setattr(random_batch, "NIGHTLY", (0, 3, 129))
    settings = Settings(profile="cpu", geometry="deepseek-v4-tiny", layers="moe", nightly=nightly)
    runner = Runner(resolve(settings), lambda result: None)
    try:
        return runner.run_claim(catalogue.get(claim)), asked
    finally:
        runner.close()


@pytest.mark.parametrize("claim", ["moe.bound.random", "moe.tp3.reference"])
def test_more_batches(monkeypatch, claim):
    result, asked = _run(monkeypatch, claim, nightly=True)
    assert result.status is Status.PASS
    assert {0, 3, 129} <= asked
    assert any("M=129" in place for place in result.evidence.measured)
    result, asked = _run(monkeypatch, claim, nightly=False)
    assert result.status is Status.PASS and not asked & {0, 3, 129}


def test_the_batch_knows_its_parts():
    x = torch.zeros(sum(random_batch.BATCHES) + sum(random_batch.NIGHTLY), 2)
    parts = random_batch.Batch(x, x, x).parts()
    assert [m for m, _ in parts] == [1, 8, 16, 64, 0, 3, 129, 4096]
    assert parts[4][1] == slice(89, 89) and parts[-1][1].stop == len(x)


def test_it_is_repeated_with_it():
    run = resolve(Settings(profile="cpu", nightly=True))
    assert run.target.nightly
    assert repeat_command(run, "moe.bound.random").endswith("--nightly")
