"""Stacks with known faults and no torch: each plans as the reference does, except for what its name says."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from conformance.errors import NotSupported, StackCrashed, StackMissing, UsageError
from conformance.stacks.protocols import (
    Axis,
    ExpertsRequest,
    KernelChoice,
    PlanOutcome,
    PlanRequest,
    StackInfo,
    StackOptions,
)
from conformance.stacks.reference import ReferencePlanner

#: Calls of `plan` are counted in the file that this names, one byte a call.
CALLS = "FAKE_STACK_CALLS"


class FakeStack:
    """Its loader is not supported, so that only `plan.*` can be proved. All but `plan` is as in the reference stack."""

    def __init__(self, name: str, plan: Callable[[PlanRequest], PlanOutcome]):
        self.name = name
        self.plan = plan

    def info(self) -> StackInfo:
        return StackInfo(name=self.name, subject=self.name, version=os.environ.get("FAKE_STACK_VERSION", "1"))

    def planner(self) -> FakeStack:
        return self

    def loader(self) -> FakeStack:
        return self

    def guards(self, requests: Sequence[PlanRequest]) -> list[PlanOutcome]:
        return ReferencePlanner().guards(requests)

    def kernel(self, request: PlanRequest, widths: Sequence[int]) -> KernelChoice:
        return ReferencePlanner().kernel(request, widths)

    def schemes(self, request: PlanRequest) -> dict[str, str]:
        return ReferencePlanner().schemes(request)

    def open_experts(self, request: ExpertsRequest) -> None:
        raise NotSupported("this stack loads nothing")

    def close(self) -> None:
        pass


def _planned(request: PlanRequest) -> PlanOutcome:
    if CALLS in os.environ:
        with Path(os.environ[CALLS]).open("ab") as file:
            file.write(b".")
    return ReferencePlanner().plan(request)


def _without_a_head(request: PlanRequest) -> PlanOutcome:
    outcome = _planned(request)
    assert outcome.axes is not None
    heads = outcome.axes["heads"]
    return msgspec.structs.replace(outcome, axes=outcome.axes | {"heads": Axis(heads.original, heads.padded, 7)})


def _death(request: PlanRequest) -> PlanOutcome:
    """The first call ends the process; later processes live."""
    first = not Path(os.environ[CALLS]).exists()
    outcome = _planned(request)
    if first:
        os._exit(9)
    return outcome


def _second_try(request: PlanRequest) -> PlanOutcome:
    """A crash at first; right whenever asked again."""
    first = not Path(os.environ[CALLS]).exists()
    outcome = _planned(request)
    if first:
        raise StackCrashed("an illegal memory access was encountered")
    return outcome


def _trouble(request: PlanRequest) -> PlanOutcome:
    raise RuntimeError("the adapter tripped")


def planner(options: StackOptions) -> FakeStack:
    return FakeStack("planner", _planned)


def wrong(options: StackOptions) -> FakeStack:
    return FakeStack("wrong", _without_a_head)


def deadly(options: StackOptions) -> FakeStack:
    return FakeStack("deadly", _death)


def wavering(options: StackOptions) -> FakeStack:
    return FakeStack("wavering", _second_try)


def tripping(options: StackOptions) -> FakeStack:
    return FakeStack("tripping", _trouble)


def absent(options: StackOptions) -> FakeStack:
    raise StackMissing("absent is not installed")


def miscalled(options: StackOptions) -> FakeStack:
    raise UsageError("--vllm-source /nowhere: no checkout")


OPENERS = (planner, wrong, deadly, wavering, tripping, absent, miscalled)
