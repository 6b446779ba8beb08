"""JUnit XML: one test case a claim. Nothing that is not a pass looks like one."""

from __future__ import annotations

import io

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from conformance.gate.verdict import Verdict
from conformance.result import ClaimResult, Status

_KIND = {
    Status.FAIL: Failure,
    Status.CRASH: Error,
    Status.ERROR: Error,
    Status.TIMEOUT: Error,
    Status.BLOCKED: Skipped,
    Status.NOT_RUN: Skipped,
    Status.NOT_SUPPORTED: Skipped,
    Status.NOT_APPLICABLE: Skipped,
    Status.WAIVED: Skipped,
}


def render(verdict: Verdict) -> bytes:
    suites = JUnitXml(f"conformance: {verdict.headline}")
    for layer in dict.fromkeys(result.layer for result in verdict.claims):
        suite = TestSuite(layer)
        for result in verdict.claims:
            if result.layer == layer:
                suite.add_testcase(_case(result))
        suites.add_testsuite(suite)
    suites.update_statistics()
    out = io.BytesIO()
    suites.write(out)
    return out.getvalue()


def _case(result: ClaimResult) -> TestCase:
    case = TestCase(result.id, classname=f"conformance.{result.layer}", time=result.seconds)
    if kind := _KIND.get(result.status):
        entry = kind(message=f"{result.status}: {result.reason}", type_=str(result.status))
        findings = result.evidence.findings if result.evidence else []
        entry.text = "\n".join([f"{f.where}: {f.got}; {f.expected} was due" for f in findings] + [result.repeat])
        case.result = [entry]
    return case
