"""The report as HTML: a section that a larger report can hold, and a page of its own around it."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, StrictUndefined

from conformance.drift.audit import Report
from conformance.drift.finding import PILLARS

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="generator" content="conformance drift"><title>{title}</title></head>
<body style="font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem">
{section}
</body>
</html>
"""


def section(report: Report) -> str:
    """`<section id="drift">`: everything is in it, its style too."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_name("section.html.jinja").read_text())
    shown = [o for o in report.outcomes if not report.baseline or o.new]
    pillars = [(pillar, [o for o in shown if o.pillar == pillar]) for pillar in PILLARS.values()]
    return template.render(report=report, pillars=[(p, o) for p, o in pillars if o])


def page(report: Report) -> bytes:
    return _PAGE.format(title=report.verdict, section=section(report)).encode()


def placed(report: Report, there: bytes) -> bytes:
    """What to write over `there`: a gate's report with this audit as its section, in an earlier one's stead; where
    there is none, or an audit's own page, a page of its own."""
    head, end, tail = there.partition(b"</body>")
    if not end or _OWN in head:
        return page(report)
    before, earlier, rest = head.partition(_SECTION)
    kept = before + rest.partition(b"</section>\n")[2] if earlier else head
    return kept + section(report).rstrip("\n").encode() + b"\n" + end + tail


_SECTION, _OWN = b'<section id="drift">', b'content="conformance drift"'
