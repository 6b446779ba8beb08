"""What a suite file needs: `@claim("loader.w2.offsets")` ties a check to its claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Check = TypeVar("_Check", bound=Callable)

#: Set on a check by `claim`. (pytest reads the decorator in the source: it collects suites without importing them.)
CLAIM_ATTRIBUTE = "__claim__"


def claim(claim_id: str) -> Callable[[_Check], _Check]:
    """Mark a plain function `(stack, context) -> Evidence` as the check of one claim."""

    def mark(check: _Check) -> _Check:
        setattr(check, CLAIM_ATTRIBUTE, claim_id)
        return check

    return mark
