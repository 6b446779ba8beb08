"""Both searches, and what comes of them."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

import hardware_profiles
from conformance.fuzz import geometries, laws
from conformance.fuzz.geometries import Case, Judge
from conformance.fuzz.search import Profile, search
from conformance.stacks import registry
from conformance.stacks.protocols import Stack, StackOptions

HOLDS, BROKEN, INCOMPLETE = "HOLDS", "BROKEN", "INCOMPLETE"
EXIT = {HOLDS: 0, BROKEN: 1, INCOMPLETE: 3}
_MOST_LISTED = 8
_MOST_GROUPS = 96


class Asked(msgspec.Struct, frozen=True):
    """`tps`: tensor-parallel sizes to draw from."""

    stack: str
    options: StackOptions
    profile: Profile
    tps: range
    backends: tuple[str, ...]
    capability: tuple[int, int] | None = None


class Report(msgspec.Struct):
    """`smallest` is the smallest case that breaks, `findings` what is wrong there; `others` more broken cases."""

    verdict: str
    stack: str
    version: str
    laws: str
    cuts: int
    counts: dict[str, int]
    smallest: str = ""
    case: dict[str, Any] = {}
    findings: list[str] = []
    others: list[str] = []
    notes: list[str] = []


def run(asked: Asked) -> Report:
    """Raises what opening the stack raises."""
    with ExitStack() as opened:
        set_hypothesis_home_dir(opened.enter_context(tempfile.TemporaryDirectory()))  # not the working folder
        opened.callback(set_hypothesis_home_dir, None)
        found = search(laws.cuts(), laws.broken, asked.profile)
        law = f"{found.judged[found.smallest]} at {found.smallest}" if found.smallest else ""
        stacks = _Stacks(asked, opened)
        version = stacks(asked.backends[0]).info().version
        report = _stack(asked, Judge(stacks, asked.capability), version)
    report.laws, report.cuts = law, len(found.judged)
    if law:
        report.verdict = BROKEN
    return report


def _stack(asked: Asked, judge: Judge, version: str) -> Report:
    cases = st.builds(Case, st.sampled_from(asked.tps), st.integers(1, _MOST_GROUPS), st.sampled_from(asked.backends))
    found = search(cases, judge, asked.profile, geometries.first(asked.tps, asked.backends))
    counts = Counter(judge.statuses.values())
    report = Report(HOLDS, asked.stack, version, "", 0, dict(counts))
    if not found.in_time:
        report.notes.append(f"out of time after {len(found.judged)} geometries")
    if found.smallest:
        report.verdict = BROKEN
        report.smallest, report.case = str(found.smallest), found.smallest._asdict()
        report.findings = found.judged[found.smallest].splitlines()
        broken = [(case, words) for case, words in found.judged.items() if words and case != found.smallest]
        report.others = [f"{case}: {words.splitlines()[0]}" for case, words in broken[:_MOST_LISTED]]
    elif counts["unproved"] or not counts["right"]:
        report.verdict = INCOMPLETE
    unproved = [case for case, outcome in judge.statuses.items() if outcome in ("unproved", "refused")]
    report.notes += [f"{judge.statuses[case]}: {case}: {judge.reasons[case]}" for case in unproved[:2]]
    return report


class _Stacks:
    """The stack for each backend: one for all of them, except that the reference stack emulates a backend's padding."""

    def __init__(self, asked: Asked, opened: ExitStack):
        self._asked, self._opened = asked, opened
        self._held: dict[str, Stack] = {}

    def __call__(self, backend: str) -> Stack:
        key = backend if self._asked.stack == "reference" else ""
        if key not in self._held:
            b = hardware_profiles.backends()[backend]
            padding = {"intermediate": b.intermediate[0], "hidden": b.hidden[0]}
            options = msgspec.structs.replace(self._asked.options, emulate=padding)
            stack = registry.open_stack(self._asked.stack, options)
            self._opened.callback(stack.close)
            self._held[key] = stack
        return self._held[key]
