"""Layer `graph`: custom operators, as `torch.compile` and graphs see them.

A stack that registers operators with torch, in the harness's own process, lists them as `custom_ops()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class CustomOp(NamedTuple):
    """`op` is the OpOverload, with one tensor as its result; `call` the Python function that the model's code calls,
    with the same arguments. `arguments(batch, number)` makes other values for every number. Batch sizes are two: a fake
    that is right at one may know that one alone."""

    op: Any
    call: Callable[..., Any]
    arguments: Callable[[int, int], tuple[Any, ...]]
    batches: tuple[int, int] = (8, 5)

    @property
    def name(self) -> str:
        """`namespace::name`"""
        name: str = self.op._schema.name
        return name
