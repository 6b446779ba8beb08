"""A catalogue of claims and stacks of the tests' own, so that a test says what happens in each."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

import hardware_profiles
from conformance import catalogue
from conformance.catalogue import Claim
from conformance.gate.settings import Resolved, Settings, resolve
from conformance.result import ClaimResult, Evidence, Finding, Status
from conformance.stacks import registry
from conformance.stacks.protocols import StackInfo
from hardware_profiles import MustPass


def passes(stack: Any, context: Any) -> Evidence:
    return Evidence(ok=True, summary="right", expected=1, measured=1)


def fails(stack: Any, context: Any) -> Evidence:
    finding = Finding("byte 352 of rank 0", "zero", "checkpoint byte 352", "the tail is not zero", rank=0, expert=0)
    return Evidence(ok=False, summary="wrong", expected=1, measured=2, findings=[finding], notes=["a note"])


def claim(name: str, check: str = "passes", group: str = "", needs_geometry: Iterable[str] = ()) -> Claim:
    return Claim(
        id=name,
        group=group or name,
        title=f"Title of {name}",
        severity="blocker",
        source="the tests",
        check=f"tests.gate.fakes:{check}" if check else "",
        needs_geometry=tuple(needs_geometry),
    )


_load = hardware_profiles.load
#: What the cpu profile asks for: of our own stack plan.*, of any other everything, and the audit's own claims.
MUST_PASS = (
    MustPass("full", "reference", "*", (), ("plan.*",)),
    MustPass("audit", "*", "*", (), ("loader.*", "moe.tp3.*")),
)


class FakeStack:
    """`opening`, `telling` (its info) and `planning` may raise; `closed` counts."""

    def __init__(self, name: str = "fake", identity: str = "1", telling: Exception | None = None):
        self.name, self.identity, self.telling = name, identity, telling
        self.planning: BaseException | None = None
        self.closing: Exception | None = None
        self.opened = self.closed = 0

    def info(self) -> StackInfo:
        if self.telling:
            raise self.telling
        return StackInfo(self.name, self.name, "1.0", identity={"loader.py": self.identity})

    def planner(self) -> object:
        if self.planning:
            raise self.planning
        return object()

    def loader(self) -> object:
        return object()

    def close(self) -> None:
        self.closed += 1
        if self.closing:
            raise self.closing


def install(
    monkeypatch: pytest.MonkeyPatch,
    claims: Iterable[Claim],
    needs: dict[str, tuple[str, ...]] | None = None,
    stacks: dict[str, Any] | None = None,
) -> None:
    """Replace the catalogue, its dependencies, the cpu profile's must-pass lists and the stacks; a stack is an object,
    or a function of options."""
    known = {c.id: c for c in claims}
    monkeypatch.setattr(catalogue, "claims", lambda: known)
    monkeypatch.setattr(catalogue, "dependencies", lambda: needs or {})
    cpu = hardware_profiles.load("cpu")._replace(must_pass=MUST_PASS)
    monkeypatch.setattr(hardware_profiles, "load", lambda name: cpu if name == "cpu" else _load(name))

    def point(stack: Any) -> Any:
        opener = stack if callable(stack) else lambda options: stack
        return SimpleNamespace(load=lambda: opener, value="tests:fake", dist=None)

    points = {name: point(stack) for name, stack in (stacks or {"fake": FakeStack(), "reference": FakeStack()}).items()}
    monkeypatch.setattr(registry, "_known", lambda: points)


def resolved(**settings: Any) -> Resolved:
    given = {"profile": "cpu", "geometry": "deepseek-v4-tiny", "stack": "fake"} | settings
    if given.get("emulate"):
        del given["profile"]
    return resolve(Settings(**{k: v for k, v in given.items() if v is not None}))


def result(status: Status, required: bool = True, name: str = "plan.a", **more: Any) -> ClaimResult:
    return ClaimResult(name, name.split(".")[0], name, status, required, **more)
