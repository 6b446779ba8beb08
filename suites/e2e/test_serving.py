"""The stack's own OpenAI-compatible server on loopback, at the largest size: a 200 is an answer, an error is none."""

from __future__ import annotations

from conformance.context import Context
from conformance.e2e.answers import answer
from conformance.e2e.client import Reply, turns
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.e2e.telling import bounds, compare, evidence


@claim("e2e.serving.answers")
def answers(stack: Stack, context: Context) -> Evidence:
    """Every 200 holds all tokens asked for, finite log-probabilities, and usage that fits what was sent."""
    measured, findings = context.e2e, list[Finding]()
    told, prompts = measured.served(), measured.prompts.short
    groups = {"alone": told.alone, "again": told.again}
    groups |= {f"{at_once} at a time": replies for at_once, replies in told.loads.items()}
    sent = {f"{at_once} at a time": turns(at_once, len(prompts)) for at_once in told.loads}
    for group, replies in groups.items():
        for number, (prompt, reply) in enumerate(zip(sent.get(group, range(len(prompts))), replies, strict=False)):
            for expected, got in _wrong(reply, len(prompts[prompt]), measured.served_tokens):
                findings.append(Finding(f"{group}, request {number}", expected, got))
    if told.alone and all(len(set(r.tokens)) == 1 for r in told.alone):
        findings.append(Finding("alone", "answers of more than one token", "each prompt is answered by one, repeated"))
    seen = {group: f"{len(replies)} answers" for group, replies in groups.items()}
    return evidence(measured, findings[:12], "every request is answered whole", seen)


def _wrong(reply: Reply, sent: int, due: int) -> list[tuple[str, str]]:
    """(expected, got) of what is wrong about one reply."""
    if reply.status != 200:
        return [("status 200", f"{reply.status} {reply.error}")]
    found = []
    if len(reply.tokens) != due:
        found.append((f"{due} tokens behind a 200", f"{len(reply.tokens)}, finish reason {reply.finish} {reply.error}"))
    if reply.finish != "length":
        found.append(("finish reason length", reply.finish))
    finite = [v for v in reply.values if isinstance(v, int | float) and abs(v) < float("inf")]
    if len(finite) != due:
        found.append((f"{due} finite log-probabilities", f"{len(finite)} of {len(reply.values)}"))
    usage = {"prompt_tokens": sent, "completion_tokens": due, "total_tokens": sent + due}
    if told := {key: (reply.usage or {}).get(key) for key in usage if (reply.usage or {}).get(key) != usage[key]}:
        found.append((f"usage {usage}", f"{told}"))
    return found


@claim("e2e.serving.same")
def same(stack: Stack, context: Context) -> Evidence:
    """One request at a time: again bit for bit; and as the engine itself answers, within the limits of batching."""
    measured, findings = context.e2e, list[Finding]()
    told = measured.served()
    for number, (a, b) in enumerate(zip(told.alone, told.again, strict=False)):
        if (list(a.tokens), list(a.values)) != (list(b.tokens), list(b.values)):
            findings.append(
                Finding(f"request {number}, asked again", "the same tokens and log-probabilities", "others")
            )
    seen: dict[str, dict[str, float]] = {}
    solo = measured.record(measured.sizes[-1]).solo
    compare(measured, "the server against its engine", solo, list(map(answer, told.alone)), seen, findings)
    return evidence(measured, findings, "the server answers as its engine, and again alike", seen)


@claim("e2e.serving.load")
def load(stack: Stack, context: Context) -> Evidence:
    """Each request of a load within the limits of batching of its answer alone, and with their gap where they part."""
    measured, findings = context.e2e, list[Finding]()
    told = measured.served()
    seen: dict[str, dict[str, float]] = {}
    for at_once, replies in told.loads.items():
        what = f"{at_once} at a time"
        alone = [told.alone[number] for number in turns(at_once, len(told.alone))]
        whole = [(a, b) for a, b in zip(alone, replies, strict=True) if len(a.steps) == len(b.steps) > 0]
        if len(whole) < len(replies):
            findings.append(Finding(what, f"{len(replies)} answers as long as alone", f"{len(whole)}"))
        mine, theirs = ([answer(pair[side]) for pair in whole] for side in (0, 1))
        compare(measured, f"{what} against alone", mine, theirs, seen, findings)
    return evidence(measured, findings, "requests do not disturb each other", seen, bounds(measured.limits.schedule))


@claim("e2e.serving.errors")
def errors(stack: Stack, context: Context) -> Evidence:
    """A request that cannot be served is a 4xx or 5xx with words, never a 200; health and metrics answer."""
    measured, findings = context.e2e, list[Finding]()
    told = measured.served()
    for what, reply in told.bad.items():
        if not 400 <= reply.status < 600:
            findings.append(Finding(what, "a 4xx or 5xx", f"{reply.status} with {len(reply.tokens)} tokens"))
        elif not reply.error:
            findings.append(Finding(what, "an error with words", f"{reply.status} without any"))
    if told.health != 200:
        findings.append(Finding("/health", "200", str(told.health)))
    if not told.metrics:
        findings.append(Finding("/metrics", "200 with metrics", "nothing"))
    seen = {what: reply.status for what, reply in told.bad.items()} | {"metrics": told.metrics, "health": told.health}
    return evidence(measured, findings, "what cannot be served is refused; health and metrics answer", seen)
