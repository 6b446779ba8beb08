"""`report.html`: one self-contained file, no script, nothing fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from conformance.report import drawing

if TYPE_CHECKING:
    from conformance.gate.folder import Manifest
    from conformance.gate.verdict import Verdict
    from conformance.result import Evidence


def render(manifest: Manifest, verdict: Verdict) -> bytes:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["words"] = _words
    environment.filters["drawing"] = _drawing
    template = environment.from_string(Path(__file__).with_name("report.html.jinja").read_text())
    return template.render(manifest=manifest, verdict=verdict).encode()


def _drawing(evidence: Evidence) -> Markup:
    """The SVG of an evidence's maps; its own text is escaped where it is drawn."""
    return Markup(drawing.svg(evidence.maps, evidence.due_maps))


def _words(value: object) -> str:
    """A measured value as compact JSON."""
    return msgspec.json.encode(value).decode()
