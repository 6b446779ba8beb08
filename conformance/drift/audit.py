"""Runs the audit: every rule over two checkouts, in a fixed order; no rule's failure stops another or passes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from conformance.drift.context import CONVERT, DEMO, Context
from conformance.drift.execute import run_probe
from conformance.drift.finding import PILLARS, Finding, NotFound, Rule
from conformance.drift.rules import all_rules
from conformance.drift.rules.coverage import SIZES
from conformance.errors import UsageError, one_line, short

SCHEMA = 1
EXIT = {"NO DRIFT": 0, "DRIFT": 1, "INCOMPLETE": 3}


class Outcome(msgspec.Struct):
    """A rule and what it found. `new`: against a baseline, the differences (or the not-found) that it did not have."""

    id: str
    pillar: str
    title: str
    severity: str
    why: str
    method: str
    #: Whether a not-found of this rule, in this run's scope, leaves the audit incomplete.
    required: bool
    finding: Finding
    new: list[str] | None = None

    @property
    def status(self) -> str:
        return self.finding.status


class Report(msgspec.Struct):
    schema: int
    verdict: str
    headline: str
    scope: str
    mpk: str
    reference: str
    #: sha256 over the whole MPK checkout, the same before and after the audit (else `changed` says so).
    mpk_sha256: str
    changed: bool
    features: list[str]
    counts: dict[str, int]
    outcomes: list[Outcome]
    baseline: str = ""

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]


def audit(mpk: Path, reference: Path, execute: bool = False) -> Report:
    """Raises UsageError where either folder is not the checkout that it is given as."""
    for option, folder in (("--mpk", mpk), ("--reference", reference)):
        if not folder.is_dir():
            raise UsageError(f"{option} {folder}: no such folder; a checkout was due")
    context = Context(mpk, reference)
    if not context.is_mpk:
        words = "no MPK checkout: python/mirage/mpk/persistent_kernel.py and the DeepSeek-V3 builder or demo were due"
        raise UsageError(f"--mpk {mpk}: {words}")
    if not context.reference.is_vllm:
        words = "no vLLM: model_executor/models/deepseek_v2.py was due in it or in its folder vllm"
        raise UsageError(f"--reference {reference}: {words}")
    before = context.mpk.fingerprint()
    if execute:
        context.probes = run_probes(context)
    outcomes = [outcome(rule, context, execute) for rule in all_rules()]
    changed = context.mpk.fingerprint() != before
    return concluded(
        Report(
            schema=SCHEMA,
            verdict="",
            headline="",
            scope="everything" if execute else "static",
            mpk=str(mpk),
            reference=str(reference),
            mpk_sha256=before,
            changed=changed,
            features=_features(context),
            counts={},
            outcomes=outcomes,
        )
    )


def run_probes(context: Context) -> dict[str, Any]:
    """Everything that runs audited code. A probe that ends badly gives a line of words in its place."""
    from conformance.drift.scheduler import run_scheduler

    root = str(context.mpk.root)
    found: dict[str, Any] = {"scheduler": run_scheduler(context)}
    try:
        for path in (DEMO, CONVERT):
            context.mpk.file(path)  # what a probe reads is within the tree, too
        found["weights"] = run_probe("weights", {"root": root, "demo": DEMO, "convert": CONVERT})
    except NotFound as error:
        found["weights"] = error.words
    if strays := context.mpk.strays("python/mirage", ".py"):
        found["trace"] = f"{strays[0]}: leads out of the checkout, which is not followed"
    else:
        found["trace"] = run_probe("trace", {"root": root, "configurations": configurations()})
    return found


def configurations() -> list[dict[str, int]]:
    """What is traced: every TP size without and with prefill and drafts, every rank of TP4, and one KV split."""
    base = {"rank": 0, "requests": 2, "sequence": 4096}
    sizes = [
        base | {"ranks": ranks, "tokens": tokens, "drafts": drafts}
        for ranks in SIZES
        for tokens, drafts in ((8, 0), (32, 2))
    ]
    ranks = [base | {"ranks": 4, "rank": rank, "tokens": 32, "drafts": 2} for rank in (1, 2, 3)]
    one_split = [base | {"ranks": 2, "tokens": tokens, "drafts": 0, "sequence": 128} for tokens in (8, 32)]
    return [*sizes, *ranks, *one_split]


def outcome(rule: Rule, context: Context, executed: bool) -> Outcome:
    """One rule's finding. A rule that raises is not-found, with what it raised: never a pass."""
    try:
        finding = rule.check(context)
    except NotFound as error:
        finding = _not_found(error.reason, error.words)
    except (Exception, RecursionError) as error:
        finding = _not_found("not-evaluated", f"the rule failed: {type(error).__name__}: {error}")
    required = rule.required and (executed or rule.method == "text") and _applies(rule, context)
    return Outcome(rule.id, rule.pillar, rule.title, rule.severity, rule.why, rule.method, required, finding)


def _not_found(reason: str, words: str) -> Finding:
    return Finding(status="not-found", expected="", actual=one_line(words), reason=reason)


def _applies(rule: Rule, context: Context) -> bool:
    """A feature that cannot be told counts as present: a rule is excused by the checkout, not by our blindness."""
    try:
        return all(context.profile.has(feature) for feature in rule.features)
    except NotFound:
        return True


def _features(context: Context) -> list[str]:
    try:
        return list(context.profile.features)
    except NotFound:
        return []


def concluded(report: Report) -> Report:
    """The report with its verdict, headline and counts: drift outranks incomplete. With a baseline only what is new
    drifts; what was not found stays incomplete, known or not."""
    drifting = [
        o for o in report.outcomes if o.status == "drift" and not o.finding.deferred and (o.new is None or o.new)
    ]
    missing = [o for o in report.outcomes if o.status == "not-found" and o.required]
    blind = [p for p in PILLARS.values() if all(o.status == "not-found" for o in report.outcomes if o.pillar == p)]
    deferred = [o for o in report.outcomes if o.finding.deferred]
    if drifting:
        report.verdict = "DRIFT"
        new = "new differences in " if report.baseline else ""
        words = f"{new}{len(drifting)} rule{'s' if len(drifting) > 1 else ''}: {', '.join(o.id for o in drifting)}"
    elif report.changed:
        report.verdict, words = "INCOMPLETE", "the checkout changed while it was audited"
    elif missing or blind:
        report.verdict = "INCOMPLETE"
        words = f"not found: {', '.join([*(o.id for o in missing), *(f'all of {p}' for p in blind)])}"
    else:
        report.verdict = "NO DRIFT"
        words = "nothing new" if report.baseline else f"{sum(o.status == 'pass' for o in report.outcomes)} rules pass"
    if deferred:
        words += f"; deferred: {', '.join(o.id for o in deferred)}"
    left = [o for o in report.outcomes if o.method != "text" and report.scope == "static"]
    scope = f" (scope: static, {len(left)} rules need --execute)" if left else ""
    report.headline = f"{report.verdict}{scope}: {words}"
    report.counts = dict(sorted(Counter(o.status for o in report.outcomes).items()))
    return report


def against(report: Report, path: Path) -> Report:
    """The report with what is new since the one saved at `path`. Raises UsageError where that is no report."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise UsageError(f"--baseline {path}: not readable: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--baseline {path}: no report of `drift --json`: {short(str(error), 100)}") from None
    if saved.schema != SCHEMA:
        raise UsageError(f"--baseline {path}: has schema {saved.schema}, {SCHEMA} was due; write it anew")
    known = {saved_one.id: saved_one.finding for saved_one in saved.outcomes}
    for now in report.outcomes:
        was = known.get(now.id)
        if now.status == "drift":
            old = set(was.differences) if was else set()
            now.new = [difference for difference in now.finding.differences if difference not in old]
        elif now.status == "not-found" and (was is None or was.status != "not-found"):
            now.new = [f"not found any more: {now.finding.actual}"]
        else:
            now.new = []
    report.baseline = str(path)
    return concluded(report)
