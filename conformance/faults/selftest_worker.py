"""The far side of `selftest_apart`: the stack is opened here, and faults are planted in it."""

from __future__ import annotations

from typing import Any

import msgspec

from conformance.errors import StackError, UsageError, one_line
from conformance.faults.selftest import Bench, Statuses
from conformance.stacks.protocols import StackOptions

_benches: list[Bench] = []


def open_bench(stack: str, options: bytes, only: list[str], backend: str | None, clean: bytes) -> tuple[str, Any]:
    """("ok", statuses of the clean stack as JSON), or an error's name and words. `clean`: those that are known."""
    known = msgspec.json.decode(clean, type=Statuses)
    try:
        made = Bench(stack, msgspec.json.decode(options, type=StackOptions), only, backend, known)
    except (StackError, UsageError) as error:
        return type(error).__name__, one_line(error)
    _benches[:] = [made]
    return "ok", msgspec.json.encode(made.clean)


def plant(fault: str) -> tuple[str, Any]:
    """("ok", Planted as JSON). Raises LookupError before `open`."""
    if not _benches:
        raise LookupError("no stack has been opened in this process")
    return "ok", msgspec.json.encode(_benches[0].plant(fault))


CALLS = {"open": open_bench, "plant": plant}
