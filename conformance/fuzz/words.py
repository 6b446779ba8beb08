"""A fuzz report as lines for a terminal; the last is the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.errors import one_line
from conformance.fuzz.run import Report

_MOST_FINDINGS = 6


def lines(report: Report) -> Iterator[str]:
    yield f"references: {report.laws or f'every law holds at {report.cuts} cuts'}"
    counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(report.counts.items()))
    yield f"{report.stack} {report.version}: {sum(report.counts.values())} geometries: {counts}"
    if report.smallest:
        yield f"smallest that breaks: {report.smallest}"
    for finding in report.findings[:_MOST_FINDINGS]:
        yield f"    {one_line(finding)}"
    if len(report.findings) > _MOST_FINDINGS:
        yield f"    and {len(report.findings) - _MOST_FINDINGS} more claims"
    for other in report.others:
        yield f"also broken: {one_line(other)}"
    for note in report.notes:
        yield f"note: {one_line(note)}"
    yield f"{report.verdict} (fuzz of stack {report.stack}; no part of a gate's verdict)"
