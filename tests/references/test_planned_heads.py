"""Heads of a stack that makes a plan where nothing asks for one: 6 heads at TP3 are 8 a rank then, else 2."""

from __future__ import annotations

import msgspec
import pytest

from conformance import expected, geometry
from conformance.context import Context
from conformance.stacks.protocols import Axis, StackOptions
from conformance.stacks.reference import ReferenceStack
from conformance.target import Target
from references import cuts
from suites.plan import test_axes

MODEL = geometry.parse(
    geometry.load("deepseek-v4-tiny").config | {"num_attention_heads": 6, "o_groups": 6, "moe_intermediate_size": 768},
    "six heads",
)


class _Planner:
    """The reference's, whose answer about heads and groups is replaced."""

    def __init__(self, padding: str, size: int):
        self._inner = ReferenceStack(StackOptions()).planner()
        self._padding, self._axis = padding, Axis(6, size, size // 3)

    def plan(self, request):
        outcome = self._inner.plan(request)
        axes = outcome.axes | {"heads": self._axis, "groups": self._axis}
        return msgspec.structs.replace(outcome, axes=axes, padding=self._padding)


def _context(padding: str, size: int) -> Context:
    target = Target(MODEL, 3, "cpu", None, None, (32,), (32,))
    return Context(target, _Planner(padding, size), ReferenceStack(StackOptions()).loader())


@pytest.mark.parametrize(
    ("padding", "size", "right"),
    [
        ("planned", 24, True),
        ("planned", 6, True),
        ("nothing", 6, True),
        ("nothing", 24, False),
        ("planned", 12, False),
    ],
)
def test_even_shares_or_by_a_plan_eights(padding, size, right):
    assert not expected.needs_virtual_tp(MODEL, 3)
    context = _context(padding, size)
    assert test_axes.heads(None, context).ok is right
    assert test_axes.groups(None, context).ok is right


@pytest.mark.parametrize(("virtual", "rows"), [(None, 2), (False, 2), (True, 8)])
def test_queries_are_cut_alike(virtual, rows):
    found = cuts.cut(MODEL.config, 3, 0, "layers.*.attn.wq_b.weight", "F8_E4M3", virtual)
    assert found is not None and found.share == rows * MODEL.head_dim
