"""Fingerprint and digit passes together: what is vouched for, what is traced, and what no position explains."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from conformance import catalogue, geometry
from conformance.context import Context
from conformance.provenance.measure import measure, to_trace
from conformance.stacks.protocols import ExpertsRequest, StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target
from tests.provenance.cells import paint
from tests.provenance.layers import CONSTANT, MemoryLayer
from tests.provenance.test_fingerprint import COLS, DUE, EXPERTS, LOADERS, RIGHT, ROWS


def _measure(program):
    layer = MemoryLayer(DUE.shape, ("w2",), program)
    return layer, measure(layer, DUE, ("w2",), (ROWS, COLS), seed=3)


def test_a_right_loader_is_vouched_for_without_digits():
    layer, seen = _measure(RIGHT)
    assert seen.boxes == DUE.boxes
    assert (seen.differing, seen.covered) == ([], list(range(EXPERTS)))
    assert layer.loads == [("w2", e) for e in [*range(EXPERTS), *reversed(range(EXPERTS))]]
    assert "all experts" in seen.method


@pytest.mark.parametrize("name", LOADERS)
def test_a_wrong_loader_is_traced(name):
    layer, seen = _measure(LOADERS[name])
    assert seen.differing == list(range(EXPERTS))
    assert seen.traced == [0, 1, 2, 4]
    assert seen.shape == DUE.shape
    cells = paint(seen, ("w2",))[seen.traced]
    known = layer.truth[seen.traced] > CONSTANT
    np.testing.assert_array_equal(cells[known], layer.truth[seen.traced][known])


@pytest.mark.parametrize(
    ("wrong", "experts", "due"),
    [
        ([0], 256, [0, 1, 2]),
        ([7], 256, [0, 7, 8, 9]),
        ([255], 256, [0, 253, 254, 255]),
        ([3, 200], 256, [0, 3, 4, 5, 200]),
        ([1], 2, [0, 1]),
        ([0], 1, [0]),
    ],
)
def test_which_experts_are_traced(wrong, experts, due):
    assert to_trace(wrong, experts) == due


class _Spoiled:
    """The reference stack's loader, after each load of which `spoil(layer, expert, source)` changes the bytes."""

    def __init__(self, inner, spoil):
        self._inner, self._spoil = inner, spoil

    def open_experts(self, request: ExpertsRequest):
        layer, spoil = self._inner.open_experts(request), self._spoil
        load, rounds = layer.load, {"fills": 0, "prefill": 0}
        fill = layer.fill

        def counted(parameter: str, value: int) -> None:
            rounds["fills"] += parameter == "w2_weight"
            rounds["prefill"] = value
            fill(parameter, value)

        def spoiled(parameter: str, shard: str, expert: int, source: torch.Tensor) -> None:
            load(parameter, shard, expert, source)
            if parameter == "w2_weight":
                data = layer.read(parameter, expert).clone()
                spoil(data, source, expert, **rounds)
                layer.write(parameter, expert, data)

        layer.fill, layer.load = counted, spoiled
        return layer


def _offsets(spoil, tp: int, rounding: int):
    model = msgspec.structs.replace(geometry.load("deepseek-v4-tiny"), experts=2)
    target = Target(model, tp, "b", None, None, (rounding,), (32,))
    stack = ReferenceStack(StackOptions(emulate={"intermediate": rounding}))
    context = Context(target, stack.planner(), _Spoiled(stack.loader(), spoil))
    checks = {kind: catalogue.get(f"loader.w2.{kind}").function() for kind in ("offsets", "tails")}
    return {kind: check(stack, context) for kind, check in checks.items()}


def _rare_value(data, source, expert, fills, prefill):
    """A loader that cannot copy runs of equal bytes: 200 becomes 201 where the whole tensor has more than 99 values."""
    if len(source.unique()) > 99 and int(source.max()) < 255:
        data[data == 200] = 201


def _first_load_only(data, source, expert, fills, prefill):
    """Not repeatable: the first load after a start goes wrong, all later ones are right."""
    if expert == 1 and fills == 1:
        data[5, 7] = 1 + int(data[5, 7]) % 254


def _also_without_tails(spoil):
    def both(data, source, expert, fills, prefill):
        spoil(data, source, expert, fills, prefill)
        data[:, 64:] = prefill  # TP2 keeps 128 elements of a kernel's 256, and nothing is padded there

    return both


def test_the_clean_loader_passes():
    evidence = _offsets(lambda *_, **__: None, tp=3, rounding=128)
    assert evidence["offsets"].ok and evidence["tails"].ok


def test_a_clean_loader_without_tails_passes_where_nothing_is_padded():
    evidence = _offsets(_also_without_tails(lambda *_, **__: None), tp=2, rounding=256)
    assert evidence["offsets"].ok and evidence["tails"].ok


@pytest.mark.parametrize("spoil", [_rare_value, _first_load_only])
@pytest.mark.parametrize("tails", ["written", "unwritten"])
def test_what_positions_do_not_explain_fails_offsets(spoil, tails):
    """Numbered bytes land right and yet the fingerprint differs: no pass, whatever the tails are."""
    if tails == "written":
        evidence = _offsets(spoil, tp=3, rounding=128)["offsets"]
    else:
        evidence = _offsets(_also_without_tails(spoil), tp=2, rounding=256)["offsets"]
    assert not evidence.ok
    assert any("depends on values or is not repeatable" in f.meaning for f in evidence.findings)
