"""Does every size answer at all: finite log-probabilities, whole answers, more than one token; and the same again?"""

from __future__ import annotations

import torch

from conformance.context import Context
from conformance.e2e import distance
from conformance.e2e.record import Record
from conformance.geometry import SCALE_GROUP, Geometry
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.e2e.telling import evidence


@claim("e2e.answers")
def answers(stack: Stack, context: Context) -> Evidence:
    """NaN behind an answer is a failure, whatever the tokens; so is one token, repeated, for every prompt."""
    measured, findings, seen = context.e2e, [], {}
    for tp in measured.sizes:
        record = measured.record(tp)
        wrong, values = _not_finite(record)
        seen[measured.name(tp)] = f"{wrong} of {values} log-probabilities are not finite"
        where = measured.name(tp)
        if wrong:
            cause = "" if measured.plan.names else _cut_group(context.geometry, tp)
            got = f"{wrong} of {values} log-probabilities are not finite" + (f": {cause}" if cause else "")
            findings.append(Finding(where, "finite log-probabilities", got))
        for number, answer in enumerate(record.solo):
            if len(answer.tokens) != measured.prompts.answer:
                words = f"{measured.prompts.answer} tokens"
                got = f"{len(answer.tokens)} (finish reason {answer.finish})"
                findings.append(Finding(f"{where}, prompt {number}", words, got))
        if all(len(set(a.tokens)) == 1 for a in record.solo):
            findings.append(
                Finding(where, "answers of more than one token", "each prompt is answered by one, repeated")
            )
    right = f"{' and '.join(map(measured.name, measured.sizes))} answer every prompt with finite log-probabilities"
    return evidence(measured, findings, right, seen, blamed=measured.sizes)


def _cut_group(g: Geometry, tp: int) -> str:
    """Why weights may be NaN from the start: a rank's share of the routed experts cuts an MXFP4 scale group."""
    if g.intermediate % (tp * SCALE_GROUP) == 0:
        return ""
    share = g.intermediate / tp
    return f"intermediate {g.intermediate} / {tp} = {share:g} is no multiple of {SCALE_GROUP}, a scale group is cut"


def _not_finite(record: Record) -> tuple[int, int]:
    likely = [a.likely for a in [*record.solo, *record.batch]] + record.forced + ([record.long] if record.long else [])
    values = torch.cat([one.values.flatten() for one in likely])
    return int((~values.isfinite()).sum()), len(values)


@claim("e2e.repeat")
def repeat(stack: Stack, context: Context) -> Evidence:
    """One prompt at a time on the same engine: tokens and log-probabilities bit for bit."""
    measured, findings, seen = context.e2e, [], {}
    for tp in measured.sizes:
        record = measured.record(tp)
        pairs = list(zip(record.solo, record.again, strict=False))
        differ = [n for n, (a, b) in enumerate(pairs) if not distance.identical(a, b)]
        seen[measured.name(tp)] = f"{len(differ)} of {len(pairs)} prompts differ"
        if differ:
            words = "the same tokens and log-probabilities, bit for bit"
            findings.append(Finding(f"{measured.name(tp)}, prompt {differ[0]}, asked again", words, "others"))
    return evidence(measured, findings, "a prompt asked again is answered bit for bit alike", seen)
