"""Layer `graph`: custom operators, as `torch.compile` and graphs see them.

A stack that registers operators with torch, in the harness's own process, lists them as `custom_ops()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Runners(NamedTuple):
    """Objects behind an operator that finds them by number. `open(columns, seed)` registers one with weights of its own
    and gives its number, `free` lets it go; `call(x, number, columns)` is what the model's code calls, x as
    `tokens(batch, seed)` makes it -> (batch, columns). A number that is free, or was never given, is an error."""

    open: Callable[[int, int], int]
    free: Callable[[int], None]
    call: Callable[[Any, int, int], Any]
    tokens: Callable[[int, int], Any]


class CustomOp(NamedTuple):
    """`op` is the OpOverload, with one tensor as its result; `call` the Python function that the model's code calls,
    with the same arguments. `arguments(batch, number)` makes other values for every number. Batch sizes are two: a fake
    that is right at one may know that one alone. `runners`: where the operator looks an object up by number."""

    op: Any
    call: Callable[..., Any]
    arguments: Callable[[int, int], tuple[Any, ...]]
    batches: tuple[int, int] = (8, 5)
    runners: Runners | None = None

    @property
    def name(self) -> str:
        """`namespace::name`"""
        name: str = self.op._schema.name
        return name
