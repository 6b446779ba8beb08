"""Which layer, and which module of it, computes something else than the reference does from the same input.

Each block is judged on its own: the reference is given what the engine's block was given, so that an early fault does
not make later blocks look wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from conformance.e2e.measured import Measured
from conformance.errors import NotSupported, StackError
from conformance.stacks.engine_protocol import Block


class Blamed(NamedTuple):
    """`error`: |y - due| / |due| (Frobenius), NaN where the output has one; `limit`: of clean stacks."""

    engine: str
    module: str
    error: float
    limit: float
    token: int  #: where it is worst

    @property
    def words(self) -> str:
        if self.error != self.error:
            return f"{self.engine}, {self.module} is the first block whose output is not finite"
        size = f"off by {self.error:.1%}, {self.limit:.1%} allowed"
        return f"{self.engine}, {self.module} is the first block that is wrong: {size}"


def errors(measured: Measured, tp: int) -> dict[str, tuple[float, int]]:
    """Module -> (relative error, worst token), in the model's order."""
    tokens = torch.tensor(measured.prompts.traced)
    found = {}
    for module, block in measured.record(tp).blocks.items():
        due = measured.reference.block(module, block.x, tokens)
        found[module] = _error(block, due)
    return found


def _error(block: Block, due: torch.Tensor) -> tuple[float, int]:
    off = (block.y.to(due.dtype) - due).norm(dim=-1)
    if not bool(off.isfinite().all()):
        return float("nan"), int((~off.isfinite()).int().argmax())
    return float(off.norm() / due.norm()), int((off / due.norm(dim=-1)).argmax())


def first(measured: Measured, tps: tuple[int, ...]) -> list[Blamed]:
    """The first wrong module of each engine; empty where none is, or where nothing can be told."""
    found = []
    for tp in tps:
        for module, (error, token) in errors(measured, tp).items():
            if not error <= (limit := _limit(measured, module)):
                found.append(Blamed(measured.name(tp), module, error, limit, token))
                break
    return found


def _limit(measured: Measured, module: str) -> float:
    """Without limits for this checkpoint, only what is not finite can be told."""
    try:
        return measured.limits.block(module)
    except NotSupported:
        return float("inf")


def words(measured: Measured, tps: tuple[int, ...]) -> list[str]:
    """For a failing claim: never raises."""
    try:
        found = [blamed.words for blamed in first(measured, tps)]
        if not any(measured.record(tp).blocks for tp in tps):
            return ["not localised: no block was looked into"]
        return found or ["no block alone is off: look between the blocks"]
    except StackError as error:
        return [f"not localised: {error}"]
