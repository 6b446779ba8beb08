"""What a report carries from the process that ran a claim to the one that judges: JSON, so that it may cross xdist."""

from __future__ import annotations

import msgspec
import pytest

from conformance.result import ClaimResult
from conformance.stacks.protocols import StackInfo

_ATTRIBUTE = "conformance"


class Told(msgspec.Struct):
    """`result` is None for a phase or an item that never came to run its claim; `wrong_call` says what is wrong
    with the call, found only when the stack was opened; `stacks` are those opened for this claim."""

    claim: str
    result: ClaimResult | None = None
    stacks: list[StackInfo] = []
    wrong_call: str = ""


def tell(report: pytest.TestReport, told: Told) -> None:
    setattr(report, _ATTRIBUTE, msgspec.json.encode(told).decode())


def told(report: pytest.TestReport) -> Told | None:
    """None for anything but a claim's report."""
    text = getattr(report, _ATTRIBUTE, None)
    return msgspec.json.decode(text, type=Told) if text else None
