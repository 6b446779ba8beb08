"""Drafts: two independent implementations agree on them, and an interval tells a wrong draft from a right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.e2e import opening
from conformance.e2e.acceptance import half_width, length
from conformance.stacks.engine_protocol import Drafts, EngineRequest
from conformance.stacks.reference_engine import ReferenceSession
from references.v4_draft import accepted
from references.v4_model import Model

PROMPTS = [[5, 6, 7, 8, 9], list(range(2, 24))]


@pytest.fixture(scope="module")
def folder() -> Path:
    return opening.small_drafting()


def _session(folder: Path, draft: int, tp: int = 3) -> ReferenceSession:
    return ReferenceSession(EngineRequest(str(folder), tp, draft=draft))


def test_engine_and_reference_accept_the_same_drafts(folder):
    """They share no code: one goes token by token in BF16, the other by masks in full precision."""
    plain, drafting, model = _session(folder, 0), _session(folder, 2), Model(folder)
    steps, counts = 0, [0, 0]
    for prompt in PROMPTS:
        (answer,) = plain.generate([prompt], 14, 5)
        (same,) = drafting.generate([prompt], 12, 5)
        assert same.tokens == answer.tokens[:12]
        due = accepted(model, prompt, answer.tokens, 12, 2)
        steps, counts = steps + due.steps, [a + b for a, b in zip(counts, due.accepted, strict=True)]
    assert drafting.drafts() == Drafts(steps, tuple(counts))
    assert steps < 22, "a draft that is never right takes 22 steps"


def test_a_draft_that_is_as_random_as_its_weights_is_never_right(folder, tmp_path):
    from references import make_checkpoint

    config = Model(folder).config
    make_checkpoint.write(tmp_path / "random", config)
    session = _session(tmp_path / "random", 2)
    session.generate(PROMPTS, 12, 5)
    assert length(session.drafts()) < 1.3


@pytest.mark.parametrize(
    ("seen", "due", "within"),
    [
        (Drafts(50, (40, 30)), Drafts(50, (40, 30)), True),
        (Drafts(50, (50, 50)), Drafts(50, (50, 49)), True),
        (Drafts(50, (44, 33)), Drafts(48, (40, 30)), True),
        (Drafts(90, (35, 18)), Drafts(58, (53, 51)), False),
        (Drafts(50, (50, 50)), Drafts(90, (35, 18)), False),
        (Drafts(50, (0, 0)), Drafts(58, (20, 5)), False),
    ],
)
def test_the_interval(seen, due, within):
    assert (abs(length(seen) - length(due)) <= half_width(seen, due)) is within


def test_tokens_a_step_and_its_spread():
    """One step accepts two tokens, one accepts one, two accept none: 0.75 of them on average, spread 0.6875."""
    drafts = Drafts(4, (2, 1))
    assert length(drafts) == 1.75
    assert half_width(drafts, drafts) == pytest.approx(3.29 * (0.6875 / 4) ** 0.5 + 0.25)
