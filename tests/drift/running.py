"""An audit of a mini-checkout in this process: its code is ours, so the probes need no process of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from conformance.drift import audit
from conformance.drift.context import CONVERT, DEMO, Context
from conformance.drift.finding import Finding
from conformance.drift.probes import trace, weights
from conformance.drift.rules import all_rules
from conformance.drift.scheduler import run_scheduler

EVERYTHING = "weights trace scheduler"


def findings(mpk: Path, vllm: Path, probes: str = EVERYTHING, only: str = "") -> dict[str, Finding]:
    """Every rule's finding (or that of one), by id."""
    context = prepared(mpk, vllm, probes)
    rules = [rule for rule in all_rules() if only in ("", rule.id)]
    return {rule.id: audit.outcome(rule, context, bool(probes)).finding for rule in rules}


def prepared(mpk: Path, vllm: Path, probes: str = EVERYTHING) -> Context:
    """A context in which the named probes have run."""
    context = Context(mpk, vllm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "cuda", torch.Tensor.cuda)  # the probes put others here
        patch.setattr(torch.cuda, "get_device_properties", torch.cuda.get_device_properties)
        patch.setattr(sys, "dont_write_bytecode", True)
        if "weights" in probes:
            request = {"root": str(mpk), "demo": DEMO, "convert": CONVERT}
            context.probes["weights"] = _told(lambda: weights.probe(request))
        if "trace" in probes:
            request = {"root": str(mpk), "configurations": audit.configurations()}
            context.probes["trace"] = _told(lambda: trace.probe(request))
        for name in [name for name in sys.modules if name == "mirage" or name.startswith("mirage.")]:
            del sys.modules[name]
    if "scheduler" in probes:
        context.probes["scheduler"] = run_scheduler(context)
    return context


def _told(probe: object) -> object:
    try:
        return probe()  # type: ignore[operator]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def edit(root: Path, path: str, old: str, new: str, count: int = -1) -> None:
    """Replace text in a file of the checkout; it must be there."""
    file = root / path
    text = file.read_text()
    assert old in text, f"{path} has no {old!r}: the mini-checkout and its mutation are out of step"
    file.write_text(text.replace(old, new, count))
