"""How much a draft is worth: tokens that a verification step yields, and how sure a count of steps makes that."""

from __future__ import annotations

from math import sqrt

from conformance.stacks.engine_protocol import Drafts

#: Standard deviations of a two-sided interval that holds in 999 of 1,000 cases.
_DEVIATIONS = 3.29


def length(drafts: Drafts) -> float:
    """Tokens a step: the accepted ones and the target's own."""
    return 1 + sum(drafts.accepted) / drafts.steps


def half_width(seen: Drafts, due: Drafts) -> float:
    """Of the interval around `length(seen)`, from the larger of the two spreads, and one token more: a draft that is
    always right has no spread."""
    return _DEVIATIONS * sqrt(max(_variance(seen), _variance(due)) / seen.steps) + 1 / seen.steps


def _variance(drafts: Drafts) -> float:
    """Of the tokens accepted in a step: n of them add 1 + 3 + 5 + ... = n^2 to the sum of squares."""
    squares = sum((2 * n + 1) * count for n, count in enumerate(drafts.accepted))
    mean = sum(drafts.accepted) / drafts.steps
    return squares / drafts.steps - mean**2
