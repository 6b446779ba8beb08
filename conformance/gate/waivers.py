"""Waivers: a failing claim may be let through for a time, by name, with an issue. None outlives its reason."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

import msgspec

from conformance import catalogue
from conformance.errors import UsageError
from conformance.result import ClaimResult, Status


class Waiver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[waiver]]` of the file. `until` is the last day on which it holds."""

    claim: str
    issue: str
    reason: str
    until: datetime.date


def load(path: str | None) -> dict[str, Waiver]:
    """Waivers by claim. Raises UsageError: unreadable, unknown claim, no issue link, no reason, doubled, expired."""
    if path is None:
        return {}
    try:
        data = tomllib.loads(Path(path).read_text())
        written = msgspec.convert(data.get("waiver", []), list[Waiver])
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"--waivers {path}: {error}") from None
    if unknown := sorted(set(data) - {"waiver"}):
        raise UsageError(f"--waivers {path}: unknown table {unknown[0]!r}; [[waiver]] was due")
    found: dict[str, Waiver] = {}
    for waiver in written:
        catalogue.get(waiver.claim)
        if waiver.claim in found:
            raise UsageError(f"--waivers {path}: {waiver.claim} is waived twice")
        if not waiver.issue.startswith(("https://", "http://")) or not waiver.reason.strip():
            raise UsageError(f"--waivers {path}: {waiver.claim} needs the link of an issue and a reason")
        if waiver.until < datetime.date.today():
            raise UsageError(f"--waivers {path}: the waiver of {waiver.claim} ended on {waiver.until}")
        found[waiver.claim] = waiver
    return found


def apply(result: ClaimResult, waivers: dict[str, Waiver]) -> ClaimResult:
    """A failing claim with a waiver becomes waived; a crash, and whatever was not measured, never does."""
    waiver = waivers.get(result.id)
    if waiver is None or result.status is not Status.FAIL:
        return result
    reason = f"waived until {waiver.until} ({waiver.issue}: {waiver.reason}): {result.reason}"
    return msgspec.structs.replace(result, status=Status.WAIVED, reason=reason)


def check_stale(results: list[ClaimResult], waivers: dict[str, Waiver]) -> None:
    """Raises UsageError for a waiver whose claim passes: it has outlived its reason."""
    for result in results:
        if result.id in waivers and result.status is Status.PASS:
            raise UsageError(
                f"the waiver of {result.id} is stale: the claim passes; delete it ({waivers[result.id].issue})"
            )
