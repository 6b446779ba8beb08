"""What a loader's troubles become, claim by claim, and that each rank is built and measured once."""

from __future__ import annotations

import msgspec
import pytest

from conformance import catalogue, errors, geometry
from conformance.context import Context
from conformance.gate.runner import evaluate
from conformance.stacks.protocols import ParameterInfo, StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target

LOADER = [c for c in catalogue.claims().values() if c.group == "loader.moe"]


class _Watched:
    """The reference stack's loader; `opening` and `loading` may raise, `shape` is what it says w2_weight is."""

    def __init__(self, opening=None, loading=None, shape=None, missing=None):
        self._inner = ReferenceStack(StackOptions(emulate={"intermediate": 128})).loader()
        self._opening, self._loading, self._shape, self._missing = opening, loading, shape, missing
        self.opened: list[int] = []
        self.closed = 0

    def open_experts(self, request):
        self.opened.append(request.rank)
        if self._opening:
            raise self._opening
        layer = self._inner.open_experts(request)
        load, close = layer.load, layer.close

        def watched(parameter, shard, expert, source):
            if self._loading and parameter == "w2_weight":
                raise self._loading
            load(parameter, shard, expert, source)

        def closed():
            self.closed += 1
            close()

        layer.load, layer.close = watched, closed
        parameters = layer.info.parameters | ({"w2_weight": self._shape} if self._shape else {})
        parameters.pop(self._missing, None)
        layer.info = msgspec.structs.replace(layer.info, parameters=parameters)
        return layer


def _statuses(loader: _Watched) -> dict[str, tuple[str, str]]:
    stack = ReferenceStack(StackOptions())
    target = Target(geometry.load("deepseek-v4-tiny"), 3, "flashinfer_cutlass", None, None, (128,), (32,))
    context = Context(target, stack.planner(), loader)
    return {c.id: (str((found := evaluate(c, stack, context))[0]), found[1]) for c in LOADER}


def test_each_rank_is_built_once_for_all_claims():
    loader = _Watched()
    assert {status for status, _ in _statuses(loader).values()} == {"pass"}
    assert (loader.opened, loader.closed) == ([0, 1, 2], 3)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.StackRefused("EP is on"), "blocked"),
        (errors.NotSupported("unknown backend"), "not-supported"),
        (errors.StackCrashed("signal 11"), "crash"),
        (errors.StackTimeout("300 s"), "timeout"),
        (errors.AdapterError("no attribute"), "error"),
    ],
)
def test_a_layer_that_cannot_be_built(error, status):
    """Asked once, and every claim of the layer says the same; a refusal blocks: the plan layer judges it."""
    loader = _Watched(opening=error)
    found = _statuses(loader)
    assert {s for s, _ in found.values()} == {status}
    assert all(str(error) in reason for _, reason in found.values())
    assert loader.opened == [0]


@pytest.mark.parametrize(
    ("error", "status"),
    [(errors.StackRefused("shape mismatch"), "fail"), (errors.StackCrashed("SIGSEGV"), "crash")],
)
def test_one_parameter_that_cannot_be_loaded(error, status):
    """Its own claims say so, and those that look at it among others; the rest is measured all the same."""
    loader = _Watched(loading=error)
    found = {name: s for name, (s, _) in _statuses(loader).items()}
    touched = {
        "loader.w2.offsets",
        "loader.w2.tails",
        "loader.w2.partition",
        "loader.w2.alignment",
        "loader.moe.experts",
    }
    assert found == {c.id: status if c.id in touched else "pass" for c in LOADER}
    assert loader.closed == 3


def test_a_parameter_too_narrow_is_a_failure_and_not_an_error():
    """32 bytes hold 64 channels; a rank's 96 do not fit."""
    found = _statuses(_Watched(shape=ParameterInfo(256, 32, "uint8")))
    assert found["loader.w2.offsets"] == (
        "fail",
        "w2_weight as built, (256, 32) bytes: 96 elements a rank do not fit a kernel width of 64",
    )
    assert found["loader.moe.width"][0] == "fail"
    assert found["loader.w13.offsets"][0] == "pass"


def test_a_parameter_that_the_layer_does_not_have():
    """INCOMPLETE, not a crash of ours; and the layer is not built again for each claim."""
    loader = _Watched(missing="w2_weight")
    found = _statuses(loader)
    assert found["loader.w2.offsets"] == ("not-supported", "the layer as built has no w2_weight")
    assert found["loader.w2_scale.offsets"][0] == found["loader.w13.offsets"][0] == "pass"
    assert loader.opened == [0, 1, 2]
