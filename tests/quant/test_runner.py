"""The MoE runner's claims on runners of the tests' own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.gate.runner import evaluate
from conformance.result import Status
from conformance.stacks.reference_runner import ReferenceRunner
from conformance.target import Target
from suites.quant.memory import peak

_TARGET = Target(geometry.load("deepseek-v4-tiny"), 3, "cpu", None, None, (32,), (32,))
CLAIMS = [claim.id for claim in catalogue.claims().values() if claim.group == "quant.moe"]


def _judged(claim, runner):
    stack = SimpleNamespace(name="own")
    context = Context(_TARGET, None, None, {"moe_runner": lambda: runner})
    return evaluate(catalogue.get(claim), stack, context)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_runner_that_answers_nothing_passes_nothing(claim):
    class Mute(ReferenceRunner):
        def run(self, handle, x, ids, weights, out):
            out.zero_()

        def shared(self, handle, x, out):
            out.zero_()

        def stages(self, handle, x, ids, weights):
            told = super().stages(handle, x, ids, weights)
            return told._replace(y=told.y * 0, out=told.out * 0)

        def count(self, ids, experts):
            return torch.zeros(experts), torch.zeros(experts + 1)

    assert _judged(claim, Mute())[0] is Status.FAIL


@pytest.mark.parametrize("claim", ["quant.moe.stages", "quant.moe.counting", "quant.moe.shared"])
def test_what_is_not_offered_is_not_supported(claim):
    class Bare(ReferenceRunner):
        def capabilities(self):
            return super().capabilities().__class__("bare")

    status, reason, _ = _judged(claim, Bare())
    assert status is Status.NOT_SUPPORTED and "offers no" in reason


def test_memory_is_what_lives_at_one_time():
    size = 1 << 20
    (_, taken) = peak(lambda: torch.zeros(size, dtype=torch.uint8))
    assert taken == size

    def three_in_turn():
        for _ in range(3):
            torch.zeros(size, dtype=torch.uint8)

    assert peak(three_in_turn)[1] == size
    assert peak(lambda: [torch.zeros(size, dtype=torch.uint8) for _ in range(3)])[1] == 3 * size
    given = torch.zeros(size, dtype=torch.uint8)
    assert peak(lambda: given.view(2, -1).T)[1] == 0
