"""How far apart two engines are: differences of log-probabilities over the top 20, and where greedy answers part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from conformance.stacks.engine_protocol import Answer, Likely


class Spread(NamedTuple):
    """Quantiles of |difference of log-probabilities|, in nats; NaN where any log-probability was NaN."""

    values: int
    p50: float
    p99: float
    max: float

    @property
    def words(self) -> str:
        return f"p50 {self.p50:.3f}, p99 {self.p99:.3f}, max {self.max:.3f} over {self.values}"


class Parting(NamedTuple):
    """The first step at which two greedy answers differ, and by how much the base engine preferred its own token."""

    prompt: int
    step: int
    tokens: tuple[int, int]
    gap: float


def between(base: Likely, other: Likely) -> torch.Tensor:
    """One value for each of the base's likely tokens. Where the other engine does not list a token, it gave it at most
    its own last value: the difference is at least that, and where that says nothing it is left out."""
    same = base.ids[:, :, None] == other.ids[:, None, :]
    listed = same.any(-1)
    theirs = torch.where(same, other.values[:, None, :].expand_as(same), 0).sum(-1)
    least = base.values - other.values[:, -1:]
    difference = torch.where(listed, (base.values - theirs).abs(), least)
    spoilt = ~torch.isfinite(other.values).all(-1) | ~torch.isfinite(base.values).all(-1)
    difference[spoilt] = torch.nan
    return difference[listed | (least > 0) | spoilt[:, None]]


def exactly(likely: Likely, truth: torch.Tensor) -> torch.Tensor:
    """Against a full table of log-probabilities (S, vocabulary)."""
    rows = truth[: len(likely.ids)]
    known = rows.gather(1, likely.ids.long().clamp(min=0))
    return (likely.values - known).abs().flatten()


def spread(differences: Sequence[torch.Tensor]) -> Spread:
    every = torch.cat([torch.empty(0), *(d.flatten() for d in differences)]).double()
    if not len(every) or bool(every.isnan().any()):
        return Spread(len(every), *[float("nan")] * 3)
    ordered = every.sort().values
    at = [ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in (0.5, 0.99, 1.0)]
    return Spread(len(ordered), *map(float, at))


def partings(base: Sequence[Answer], other: Sequence[Answer]) -> list[Parting]:
    """Of each prompt whose answers part; those that do not are not listed."""
    found = []
    for prompt, (a, b) in enumerate(zip(base, other, strict=True)):
        step = next((i for i, (s, t) in enumerate(zip(a.tokens, b.tokens, strict=False)) if s != t), None)
        if step is not None:
            mine, theirs = a.tokens[step], b.tokens[step]
            gap = _preferred(a.likely, step, mine, theirs)
            found.append(Parting(prompt, step, (mine, theirs), gap))
    return found


def until_parted(a: Answer, b: Answer) -> tuple[Likely, Likely]:
    """What was likely at the steps that follow the same tokens."""
    same = next((i for i, (s, t) in enumerate(zip(a.tokens, b.tokens, strict=False)) if s != t), len(a.tokens) - 1)
    steps = min(same + 1, len(a.tokens), len(b.tokens))
    first, second = (Likely(x.likely.ids[:steps], x.likely.values[:steps]) for x in (a, b))
    return first, second


def _preferred(likely: Likely, step: int, own: int, other: int) -> float:
    """By how much; infinite where the other token was not among the likely ones, NaN where anything is."""
    ids, values = likely.ids[step].tolist(), likely.values[step].tolist()
    if any(v != v for v in values):
        return float("nan")
    known = dict(zip(ids, values, strict=True))
    return known[own] - known[other] if own in known and other in known else float("inf")


def identical(a: Answer, b: Answer) -> bool:
    """Tokens and every listed log-probability, bit for bit (a NaN is equal to a NaN)."""
    bits = a.likely.values.view(torch.int32), b.likely.values.view(torch.int32)
    return a.tokens == b.tokens and torch.equal(a.likely.ids, b.likely.ids) and torch.equal(*bits)
