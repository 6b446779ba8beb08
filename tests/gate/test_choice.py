"""Claims about choosing kernels: asked of whoever chooses, never of a library that is told, never left out by words of
the stack's own."""

from __future__ import annotations

import pytest

from conformance import catalogue
from conformance.gate.settings import Settings, resolve

SELECTION = [claim for claim in catalogue.claims().values() if claim.group == "moe.selection"]


@pytest.mark.parametrize(
    ("stack", "layers", "asked"),
    [
        ("flashinfer", "moe", False),
        ("flashinfer", "moe,graph", False),
        ("moe=flashinfer", "loader,moe", False),
        ("flashinfer", None, True),  # everything is in scope: that nobody plans is no GO
        ("flashinfer", "plan,moe", True),
        ("moe=flashinfer", "plan,moe", True),  # the profile's own stack plans
        ("moe=flashinfer", None, True),
        ("vllm", "moe", True),
        (None, "moe", True),
    ],
)
def test_who_is_asked(stack, layers, asked):
    run = resolve(Settings(profile="sm90", stack=stack, layers=layers))
    for claim in SELECTION:
        assert claim.id in run.required
        reason = claim.not_applicable(run.target)
        assert bool(reason) is not asked
        assert asked or "told which to run" in reason
