"""The prompts: random tokens, of lengths that cross a model's window, compression and index limits."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

#: Goes up with every change of prompts or of how they are scored: limits calibrated for another one are stale.
RECIPE = 1
#: Likeliest tokens that are compared at each step.
TOP = 20
_ANSWER, _FEW, _SMALL = 16, 4, 64
_SEED = 20261130


class Prompts(NamedTuple):
    short: list[list[int]]
    long: list[int]  #: longer than what the indexer may choose from; empty where the model has no indexer
    answer: int  #: tokens that are generated for each short prompt

    @property
    def traced(self) -> list[int]:
        """The prompt whose blocks are looked into: longer than the window."""
        return self.short[3]


def prompts(config: dict[str, Any], context: int) -> Prompts:
    """Shorter than the window (twice), just over it, over twice, over four times; `context`: the most that fits."""
    window = config.get("sliding_window") or 128
    lengths = [5, window // 4 + 5, window + 2, 2 * window + window // 3, 4 * window + 1]
    long = 4 * config["index_topk"] + window // 2 if config.get("index_topk") else 0
    rng, vocabulary = random.Random(_SEED), config["vocab_size"]
    made = [[rng.randrange(2, vocabulary) for _ in range(n)] for n in [*lengths, long]]
    answer = _ANSWER if window >= _SMALL else _FEW
    fitting = [p for p in made[:-1] if len(p) + answer <= context]
    return Prompts(fitting, made[-1] if len(made[-1]) < context else [], answer)
