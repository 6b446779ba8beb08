"""Layer `graph`: custom operators, as `torch.compile` and graphs see them.

A stack that registers operators with torch, in the harness's own process, lists them as `custom_ops()`, a CustomOp
each. One whose operators are in another process lists what answers the same questions (JudgedOp) from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from conformance.stacks import op_measures


class Runners(NamedTuple):
    """Objects behind an operator that finds them by number. `open(columns, seed)` registers one with weights of its own
    and gives its number, `free` lets it go; `call(x, number, columns)` is what the model's code calls, x as
    `tokens(batch, seed)` makes it -> (batch, columns). A number that is free, or was never given, is an error."""

    open: Callable[[int, int], int]
    free: Callable[[int], None]
    call: Callable[[Any, int, int], Any]
    tokens: Callable[[int, int], Any]


class JudgedOp(Protocol):
    """What the suite asks of an operator: measured where it lives, in simple types; each question is explained in
    `op_measures`. `library`: words for whose torch it is."""

    @property
    def name(self) -> str: ...
    @property
    def batches(self) -> tuple[int, int]: ...
    @property
    def runners(self) -> Runners | None: ...
    @property
    def library(self) -> str: ...

    def has_fake(self) -> bool: ...
    def opcheck(self, test: str, batch: int) -> str: ...
    def lasting(self, batch: int) -> tuple[bool, bool]: ...
    def untouched(self) -> list[str]: ...
    def explained(self) -> tuple[int, str, str]: ...
    def compiled(self) -> list[tuple[int, bool, str]]: ...
    def programs(self, batches: tuple[int, ...]) -> tuple[int, str]: ...


class CustomOp(NamedTuple):
    """`op` is the OpOverload; `call` the Python function that the model's code calls, with the same arguments, all of
    them by position. Results are tensors: returned, one or several, or written into arguments, as the schema says.
    `arguments(batch, number)` makes other values for every number. Batch sizes are two: a fake that is right at one may
    know that one alone. `runners`: where the operator looks an object up by number. The rest are JudgedOp's answers.
    """

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

    @property
    def library(self) -> str:
        import torch

        return f"torch {torch.__version__}"

    def has_fake(self) -> bool:
        return op_measures.has_fake(self.op)

    def opcheck(self, test: str, batch: int) -> str:
        return op_measures.opcheck(self, test, batch)

    def lasting(self, batch: int) -> tuple[bool, bool]:
        return op_measures.lasting(self, batch)

    def untouched(self) -> list[str]:
        return op_measures.untouched(self)

    def explained(self) -> tuple[int, str, str]:
        return op_measures.explained(self)

    def compiled(self) -> list[tuple[int, bool, str]]:
        return op_measures.compiled(self)

    def programs(self, batches: tuple[int, ...]) -> tuple[int, str]:
        return op_measures.programs(self, batches)


class Listed(list[JudgedOp]):
    """What a stack lists, and in `notes` what it leaves out, by name, and why. `refused`: what should have been judged,
    and whose call raises, in words; `device`: cpu or cuda, where calls run."""

    def __init__(
        self, ops: Iterable[JudgedOp], notes: Iterable[str] = (), refused: Iterable[str] = (), device: str = ""
    ) -> None:
        super().__init__(ops)
        self.notes, self.refused, self.device = tuple(notes), tuple(refused), device
