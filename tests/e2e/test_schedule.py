"""Chunks and the prefix cache are proved by what the engine did, or not at all."""

from __future__ import annotations

import json

import pytest

from conformance.e2e import opening
from conformance.e2e.measured import Measured, Plan
from conformance.stacks.engine_protocol import Answer, EngineRequest, Likely
from conformance.stacks.reference_engine import ReferenceEngine, ReferenceSession
from suites.e2e.test_schedule import prefill, unproved

PROMPTS = [list(range(5)), list(range(40))]


def _answer(steps: list[int], cached: int = 0) -> Answer:
    return Answer([1, 2], "length", Likely(None, None), cached, steps)  # type: ignore[arg-type]


CHUNKS = [_answer([5, 1]), _answer([16, 16, 8, 1])]
KNOWN = [_answer([5, 1]), _answer([8, 1], cached=32)]


def test_chunks_and_a_hit_cache_are_a_proof():
    assert unproved(PROMPTS, 16, CHUNKS, KNOWN) == ""
    assert prefill(KNOWN[1], 40) == [8]


@pytest.mark.parametrize(
    ("chunks", "known", "words"),
    [
        ([CHUNKS[0], _answer([40, 1])], KNOWN, "computed in steps of \\[40\\]: chunks of at most 16"),
        ([CHUNKS[0], _answer([24, 16, 1])], KNOWN, "chunks of at most 16"),
        ([CHUNKS[0], _answer([16, 16, 1])], KNOWN, "chunks of at most 16"),
        ([CHUNKS[0], _answer([])], KNOWN, "does not say"),
        (CHUNKS, CHUNKS, "never hit"),
    ],
)
def test_anything_less_is_none(chunks, known, words):
    import re

    assert re.search(words, unproved(PROMPTS, 16, chunks, known))


def test_prompts_within_a_chunk_prove_nothing():
    assert "no prompt is longer" in unproved(PROMPTS, 64, CHUNKS, KNOWN)


class Whole(ReferenceEngine):
    """An engine that takes a prompt in one step, whatever it was asked for."""

    def open(self, request: EngineRequest) -> ReferenceSession:
        return super().open(EngineRequest(request.model, request.tp, prefix_cache=request.prefix_cache))


@pytest.mark.parametrize(("engine", "proved"), [(ReferenceEngine, True), (Whole, False)])
def test_an_engine_that_cuts_nothing_is_seen(engine, proved):
    small = opening.small()
    config = json.loads((small / "config.json").read_text())
    measured = Measured(Plan(small, config, (2,), "reference", "reference stack"), engine, "1")
    assert (unproved(measured.prompts.short, measured.chunk, *measured.chunked()) == "") is proved
