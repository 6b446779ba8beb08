"""What servers tell in JSON, as the answers that engines give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from conformance.e2e.client import Reply
from conformance.e2e.prompts import TOP
from conformance.stacks.engine_protocol import Answer, Likely


def answer(reply: Reply) -> Answer:
    return Answer(list(reply.tokens), reply.finish, likely(reply.steps, TOP))


def likely(steps: Sequence[Mapping[int, float]], top: int) -> Likely:
    """The `top` likeliest of each step, best first; a step with fewer is filled up with token -1 at minus infinity."""
    ids, values = torch.full((len(steps), top), -1, dtype=torch.int32), torch.full((len(steps), top), -torch.inf)
    for row, step in enumerate(steps):
        best = sorted(step.items(), key=lambda item: -item[1] if item[1] == item[1] else 0.0)[:top]
        for column, (token, value) in enumerate(best):
            ids[row, column], values[row, column] = token, value
    return Likely(ids, values)
