"""Q_LEN gates: for which numbers of new tokens a device function does its work, by its early returns and branches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from conformance.drift.finding import Evidence, NotFound
from conformance.drift.locate.arithmetic import evaluate_cxx
from conformance.drift.locate.cxx import Body, CxxSource

#: Q_LEN is looked at from 1 to here; every gate known lies far below.
LONGEST = 1024
ALL = frozenset(range(1, LONGEST + 1))
_NAME = re.compile(r"\b\w*q_len\w*\b", re.IGNORECASE)
_IF = re.compile(r"\bif\s*(?:constexpr\s*)?\(")
_CALLS_KERNEL = re.compile(r"\b(mla_\w+?(?:_task_impl|_main))\s*(?:<[^<>;]*>)?\s*\(")


class Domain(NamedTuple):
    q_lens: frozenset[int]
    evidence: list[Evidence]


class _Branch(NamedTuple):
    condition: str
    at: int  #: offset of the `if` in the file
    body: tuple[int, int]
    returns: bool


def domain(source: CxxSource, name: str, tp: int, find: Callable[[str], CxxSource]) -> Domain:
    """The Q_LEN that `name` serves at this TP size. A function that calls other MLA kernels serves what they serve,
    each where its branch lets it; `find` gives the source of a kernel. Raises NotFound."""
    body = source.function(name)
    branches = _branches(source, body)
    calls = [m for m in _CALLS_KERNEL.finditer(body.body) if m[1] != name]
    if not calls:
        return Domain(*_reachable(source, branches, body.body_start + len(body.body), tp))
    served: frozenset[int] = frozenset()
    evidence: list[Evidence] = []
    for call in calls:
        at = body.body_start + call.start()
        allowed, gates = _reachable(source, branches, at, tp)
        if allowed:
            inner = domain(find(call[1]), call[1], tp, find)
            if served & allowed & inner.q_lens:
                raise NotFound("ambiguous", f"{source.path}: {name} sends one Q_LEN to two kernels")
            served |= allowed & inner.q_lens
            evidence += [*gates, *inner.evidence]
    return Domain(served, evidence)


def _branches(source: CxxSource, body: Body) -> list[_Branch]:
    found = []
    for match in _IF.finditer(body.body):
        at = body.body_start + match.start()
        inside, end = source.enclosed(body.body_start + match.end() - 1)
        condition = " ".join(source.text[inside:end].split())
        after = re.compile(r"\s*(\{|return\s*;)").match(source.text, end + 1)
        if after is None:
            continue
        if after[1] == "{":
            start, stop = source.enclosed(after.end() - 1)
            text = source.text[start:stop]
            found.append(_Branch(condition, at, (start, stop), bool(re.search(r"\breturn\s*;\s*$", text))))
        else:
            found.append(_Branch(condition, at, after.span(1), True))
    return found


def _reachable(source: CxxSource, branches: list[_Branch], at: int, tp: int) -> tuple[frozenset[int], list[Evidence]]:
    """The Q_LEN with which the place `at` is reached."""
    constants = source.constants()
    allowed, evidence = ALL, []
    for branch in branches:
        inside = branch.body[0] <= at <= branch.body[1]
        if not inside and not (branch.returns and branch.body[1] < at):
            continue
        if inside and (size := re.search(r"\bTP_SIZE\s*==\s*(\d+)", branch.condition)):
            allowed = allowed if int(size[1]) == tp else frozenset()
            continue
        terms = [term for term in branch.condition.split("&&" if inside else "||") if _NAME.search(term)]
        for term in terms:
            holds = _where(term, constants)
            if holds is None:
                continue
            allowed &= holds if inside else ALL - (holds & _within(branch, branches, at, constants))
            evidence.append(source.evidence(branch.at, "Q_LEN gate"))
    return allowed, evidence


def _within(inner: _Branch, branches: list[_Branch], at: int, constants: dict[str, int]) -> frozenset[int]:
    """The Q_LEN with which a branch itself is reached through the branches around it that are not around `at`."""
    reached = ALL
    for outer in branches:
        if outer.body[0] <= inner.at < outer.body[1] and not outer.body[0] <= at <= outer.body[1]:
            for term in outer.condition.split("&&"):
                holds = _where(term, constants)
                reached &= ALL if holds is None else holds
    return reached


def _where(term: str, constants: dict[str, int]) -> frozenset[int] | None:
    """The Q_LEN for which a comparison holds; None where it compares something else (`Q_LEN - gi * qpg`)."""
    match = re.fullmatch(r"\(*\s*(\w+)\s*(<=|>=|<|>|==)\s*(\w+)\s*\)*", term.strip())
    if match is None or not _NAME.fullmatch(match[1]):
        return None
    try:
        limit = evaluate_cxx(match[3], constants)
    except NotFound:
        return None
    compare: dict[str, Callable[[int], bool]] = {
        "<": lambda q: q < limit,
        "<=": lambda q: q <= limit,
        ">": lambda q: q > limit,
        ">=": lambda q: q >= limit,
        "==": lambda q: q == limit,
    }
    return frozenset(q for q in ALL if compare[match[2]](q))


def spans(numbers: frozenset[int] | set[int]) -> str:
    """`9-15`, `1-8, 16-1024`: runs of consecutive numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in runs) or "none"
