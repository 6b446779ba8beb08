"""What a check says of calls that were bound to an installed library's signatures; nothing of them ran."""

from __future__ import annotations

from typing import Any

import hardware_profiles
from conformance.result import Evidence, Finding

_MOST = 12


def capability(profile: str) -> tuple[int, int]:
    found = hardware_profiles.load(profile).capability
    assert found is not None
    return found


def evidence(findings: list[Finding], calls: str, told: object, profile: str, measured: Any, method: str) -> Evidence:
    """`calls`: how many there are, in words. Where none was told (`told` is empty) nothing is proved."""
    first = findings[0] if findings else None
    return Evidence(
        ok=first is None and bool(told),
        summary=f"{calls} bind, with the dtypes and shapes due on {profile}"
        if first is None
        else f"{first.where}: {first.got}, {first.expected} due",
        expected="every argument known to the library, every tensor of the dtype and shape due",
        measured=measured,
        findings=findings[:_MOST],
        notes=["bound to the installed library; nothing ran, and no number was computed"],
        method=method,
    )
