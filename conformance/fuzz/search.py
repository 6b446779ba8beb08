"""hypothesis, driven as a search: does anything break, and what is the smallest that does?"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T", bound=Hashable)


class Profile(NamedTuple):
    """How hard to search. `seconds` None: as long as the examples take; the same examples every time, or fresh ones."""

    examples: int
    seconds: float | None
    repeatable: bool


PROFILES = {"dev": Profile(80, 12.0, True), "nightly": Profile(3000, None, False)}


class Found(NamedTuple):
    """`judged`: case -> what is wrong with it (empty: nothing), in order of trial. `smallest`: None if all is well."""

    judged: dict[Any, str]
    smallest: Any
    in_time: bool


class _Broken(Exception):
    pass


def search(strategy: SearchStrategy[T], judge: Callable[[T], str], profile: Profile, first: Iterable[T] = ()) -> Found:
    """Judge the `first` cases, then what hypothesis draws; shrink a broken one. Each case is judged once.

    Out of time, what has not been judged counts for nothing, and shrinking ends with the smallest found by then.
    """
    judged: dict[T, str] = {}
    ends = time.monotonic() + profile.seconds if profile.seconds is not None else None
    late = False

    def known(case: T) -> str:
        nonlocal late
        if case not in judged:
            if ends is not None and time.monotonic() > ends:
                late = True
                return ""
            judged[case] = judge(case)
        return judged[case]

    for case in first:
        known(case)
    smallest: list[T] = []

    @settings(
        max_examples=profile.examples,
        deadline=None,
        database=None,
        derandomize=profile.repeatable,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(strategy)
    def run(case: T) -> None:
        if known(case):
            smallest[:] = [case]  # the last one that hypothesis tries is its smallest
            raise _Broken

    try:
        run()
    except _Broken:
        return Found(judged, smallest[0], not late)
    return Found(judged, next((case for case, words in judged.items() if words), None), not late)
