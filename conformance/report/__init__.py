"""What a run leaves behind beside its evidence: verdict, JUnit, HTML, attestation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from conformance.gate.folder import RunFolder
    from conformance.gate.verdict import Verdict


def write_all(folder: RunFolder, verdict: Verdict) -> None:
    """Write `verdict.json`, `junit.xml`, `report.html` and `attestation.json` into the run folder."""
    from conformance.report import attestation, html, junit

    folder.write("verdict.json", msgspec.json.format(msgspec.json.encode(verdict), indent=1))
    folder.write("junit.xml", junit.render(verdict))
    folder.write("report.html", html.render(folder.manifest, verdict))
    folder.write("attestation.json", attestation.render(folder, verdict))
