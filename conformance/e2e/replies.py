"""Faults of serving, planted between a server and the harness: what a server that lies would have sent."""

from __future__ import annotations

from collections.abc import Callable

from conformance.e2e.client import Reply, Told

#: Kinds that start so are planted here, in any stack's replies.
SERVING = "serving-"


def spoilt(told: Told, kind: str) -> Told:
    return _KINDS[kind](told)


def _each(change: Callable[[Reply], Reply]) -> Callable[[Told], Told]:
    def spoil(told: Told) -> Told:
        alone, again = ([change(r) for r in group] for group in (told.alone, told.again))
        return told._replace(alone=alone, again=again, loads=_loads(told, lambda group: [change(r) for r in group]))

    return spoil


def _loads(told: Told, change: Callable[[list[Reply]], list[Reply]]) -> dict[int, list[Reply]]:
    return {at_once: change(group) for at_once, group in told.loads.items()}


def _rotated(told: Told) -> Told:
    """Under load, everyone gets the next one's answer."""
    return told._replace(loads=_loads(told, lambda group: group[1:] + group[:1]))


def _crowded(told: Told) -> Told:
    """Only where more ask than a server was tried with: of the largest load, two answers are exchanged."""
    most = max(told.loads)
    first, second, *rest = told.loads[most]
    return told._replace(loads=told.loads | {most: [second, first, *rest]})


def _obliging(told: Told) -> Told:
    """What cannot be served is answered with a 200 and nothing."""
    return told._replace(bad=dict.fromkeys(told.bad, Reply(200)))


def _other_usage(reply: Reply) -> Reply:
    return reply._replace(usage=(reply.usage or {}) | {"completion_tokens": 0})


def _ended(reply: Reply) -> Reply:
    """The answer ends at its first token, though its end was to be ignored."""
    kept = reply._replace(tokens=reply.tokens[:1], values=reply.values[:1], steps=reply.steps[:1])
    return kept._replace(finish="stop", usage=(reply.usage or {}) | {"completion_tokens": 1})


def _forgetful(told: Told) -> Told:
    """The second time, another log-probability."""
    return told._replace(again=[r._replace(values=[0.0, *r.values[1:]]) for r in told.again])


_KINDS: dict[str, Callable[[Told], Told]] = {
    "serving-empty": _each(lambda r: r._replace(tokens=[], values=[], steps=[])),
    "serving-ended": _each(_ended),
    "serving-null": _each(lambda r: r._replace(values=[None] * len(r.values))),
    "serving-usage": _each(_other_usage),
    "serving-forgetful": _forgetful,
    "serving-rotated": _rotated,
    "serving-crowded": _crowded,
    "serving-obliging": _obliging,
}
KINDS = tuple(_KINDS)
