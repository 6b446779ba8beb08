"""An in-toto Statement with the test-result predicate, over the run's evidence.

Sources: in-toto Attestation Framework v1 (statement) and predicate type `https://in-toto.io/attestation/test-result/v0.1`.
PASSED only for what may be launched: a plain GO of real stacks over a full scope. WARNED for a GO with waivers, over a
part, with a repair, by force, or of the reference stack. FAILED for everything else, INCOMPLETE included.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.gate.verdict import Verdict, Word
from conformance.result import NO_GO, Status

if TYPE_CHECKING:
    from conformance.gate.folder import RunFolder
    from conformance.gate.recorded import Recorded

_RESULT = {Word.GO: "WARNED", Word.WAIVED: "WARNED", Word.NO_GO: "FAILED", Word.INCOMPLETE: "FAILED"}


def render(folder: RunFolder | Recorded, verdict: Verdict) -> bytes:
    evidence = _digest(folder.path / "evidence.jsonl")
    subjects: list[dict[str, Any]] = [{"name": "evidence.jsonl", "digest": {"sha256": evidence}}]
    for name, info in folder.manifest.stacks.items():
        whole = hashlib.sha256(msgspec.json.encode([info.version, sorted(info.identity.items())])).hexdigest()
        subjects.append({"name": f"stack:{name}@{info.version}", "digest": {"sha256": whole}})
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": "PASSED" if verdict.full_go else _RESULT[verdict.verdict],
            "configuration": [
                {"name": "manifest.json", "digest": {"sha256": _digest(folder.path / "manifest.json")}},
                {"name": verdict.headline},
            ],
            "passedTests": [r.id for r in verdict.claims if r.status is Status.PASS],
            "warnedTests": [r.id for r in verdict.claims if r.status is Status.WAIVED],
            "failedTests": [r.id for r in verdict.claims if r.status in NO_GO],
        },
    }
    return msgspec.json.format(msgspec.json.encode(statement), indent=1)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
