"""The far side of `apart`: opens the stack in this process and runs checks on it."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from conformance import catalogue
from conformance.errors import StackError, UsageError, one_line
from conformance.gate.runner import Runner
from conformance.gate.settings import Settings, resolve
from conformance.result import ClaimResult

_runners: list[Runner] = []


def open_stack(settings: bytes, stack: str, folder: str) -> tuple[str, Any]:
    """("ok", StackInfo as JSON), or an error's name and words. `folder`: what relative paths are relative to."""
    os.chdir(folder)
    try:
        run = resolve(msgspec.json.decode(settings, type=Settings))
        runner = Runner(run, lambda result: None, apart=False)
        info = runner.stack(stack).info()
    except (StackError, UsageError) as error:
        return type(error).__name__, one_line(error)
    _runners[:] = [runner]
    return "ok", msgspec.json.encode(info)


def judge(claim: str, results: bytes) -> tuple[str, Any]:
    """("ok", (status, reason, evidence as JSON or nothing)). Raises LookupError before `open`."""
    if not _runners:
        raise LookupError("no stack has been opened in this process")
    runner = _runners[0]
    for result in msgspec.json.decode(results, type=list[ClaimResult]):
        runner.results[result.id] = result
    try:
        status, reason, evidence = runner.judge(catalogue.get(claim))
    except UsageError as error:
        return "UsageError", one_line(error)
    return "ok", (str(status), reason, msgspec.json.encode(evidence) if evidence else b"")


CALLS = {"open": open_stack, "judge": judge}
