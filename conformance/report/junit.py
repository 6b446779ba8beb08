"""JUnit XML: one test case a claim. Nothing that is not a pass looks like one.

A CI server takes a skip for good news, so a required claim that was not proved is an error, and only what is not
required, does not apply or is waived is a skip.
"""

from __future__ import annotations

import io

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from conformance.errors import printable
from conformance.gate.verdict import Verdict
from conformance.result import ClaimResult, Status

_KIND = {
    Status.FAIL: Failure,
    Status.CRASH: Error,
    Status.ERROR: Error,
    Status.TIMEOUT: Error,
}
_SKIPPED = (Status.NOT_APPLICABLE, Status.WAIVED)


def render(verdict: Verdict) -> bytes:
    suites = JUnitXml(printable(f"conformance: {verdict.headline}"))
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
    if result.status is not Status.PASS:
        unproved = Error if result.required and result.status not in _SKIPPED else Skipped
        kind = _KIND.get(result.status, unproved)
        entry = kind(message=printable(f"{result.status}: {result.reason}"), type_=str(result.status))
        findings = result.evidence.findings if result.evidence else []
        lines = [f"{f.where}: {f.got}; {f.expected} was due" for f in findings] + [result.repeat]
        entry.text = "\n".join(map(printable, lines))
        case.result = [entry]
    return case
