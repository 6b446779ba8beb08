"""Faults of custom operators: a wrong fake, an alias, a hidden mutation, a graph break."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from conformance.stacks.op_protocol import CustomOp, Runners

_NUMBER = itertools.count()


class OpFault(NamedTuple):
    """Each hook may be None. `body` makes the result from the clean operator and its arguments, `fake` changes what the
    clean fake announces, `call` the Python function round the operator."""

    body: Callable[[Callable[..., torch.Tensor], tuple[Any, ...]], torch.Tensor] | None = None
    fake: Callable[[torch.Tensor], torch.Tensor] | None = None
    call: Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]] | None = None
    #: Changes the objects that are found by number, where the operator has any.
    runners: Callable[[Runners], Runners] | None = None


def planted(op: CustomOp, fault: OpFault) -> CustomOp:
    """Another operator of the same schema with the fault in it."""
    if fault.runners:
        return op._replace(runners=fault.runners(op.runners)) if op.runners else op
    if fault.call:
        return op._replace(call=fault.call(op.call))
    import torch

    namespace, name = "conformance_planted", f"fault{next(_NUMBER)}"
    schema = str(op.op._schema)
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(name + schema[schema.index("(") :])
    clean, body, fake = op.op, fault.body, fault.fake

    def real(*arguments: Any) -> torch.Tensor:
        made: torch.Tensor = body(clean, arguments) if body else clean(*arguments)
        return made

    def announced(*arguments: Any) -> torch.Tensor:
        made: torch.Tensor = clean(*arguments)
        return fake(made) if fake else made

    library.impl(name, real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{namespace}::{name}", announced, lib=library)
    found = getattr(getattr(torch.ops, namespace), name).default
    _KEPT.append(library)
    return op._replace(op=found, call=found)


#: An operator is gone with its library.
_KEPT: list[Any] = []


def _wider(made: torch.Tensor) -> torch.Tensor:
    return made.new_empty(made.shape[0], 2 * made.shape[1])


def _half(made: torch.Tensor) -> torch.Tensor:
    import torch

    return made.new_empty(made.shape, dtype=torch.bfloat16)


def _turned(made: torch.Tensor) -> torch.Tensor:
    return made.new_empty(made.shape[1], made.shape[0]).t()


def _batch_of_eight(made: torch.Tensor) -> torch.Tensor:
    return made.new_empty(8, made.shape[1])


def _returns_input(clean: Callable[..., torch.Tensor], arguments: tuple[Any, ...]) -> torch.Tensor:
    """Computed in place, in the input's left half."""
    made = clean(*arguments)
    view: torch.Tensor = arguments[0][:, : made.shape[1]]
    return view


def _returns_buffer(clean: Callable[..., torch.Tensor], arguments: tuple[Any, ...]) -> torch.Tensor:
    made = clean(*arguments)
    buffer = _BUFFERS.setdefault(made.shape[1], made.new_empty(64, made.shape[1]))
    return buffer[: len(made)].copy_(made)


_BUFFERS: dict[int, torch.Tensor] = {}


def _mutates_input(clean: Callable[..., torch.Tensor], arguments: tuple[Any, ...]) -> torch.Tensor:
    made = clean(*arguments)
    arguments[0].mul_(0.5)
    return made


def _broken(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def wrapped(*arguments: Any) -> torch.Tensor:
        import torch._dynamo

        made = call(*arguments)
        torch._dynamo.graph_break()
        return made + 0.0

    return wrapped


def _branching(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Python looks at a number before it goes on."""

    def wrapped(*arguments: Any) -> torch.Tensor:
        made = call(*arguments)
        return made if float(made.abs().max()) < 1e9 else made * 0

    return wrapped


def _disabled(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    import torch

    hidden: Callable[..., torch.Tensor] = torch.compiler.disable(call)
    return hidden


def _locked(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A table is looked up under a lock on the way to the kernel."""
    lock = threading.Lock()

    def wrapped(*arguments: Any) -> torch.Tensor:
        with lock:
            return call(*arguments)

    return wrapped


def _by_folder(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The cache of compiled kernels is looked for by the working folder."""

    def wrapped(*arguments: Any) -> torch.Tensor:
        return call(*arguments) * len(Path.cwd().parts[:1])

    return wrapped


def _each_size(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Python counts rows, so that each batch size is a program of its own."""

    def wrapped(*arguments: Any) -> torch.Tensor:
        return call(*arguments) * (sum(1 for _ in range(arguments[0].shape[0])) > 0)

    return wrapped


def _numbers_again(r: Runners) -> Runners:
    """A free number is given to the next one."""
    known: dict[int, int] = {}
    free: list[int] = []

    def opened(columns: int, seed: int) -> int:
        inner = r.open(columns, seed)
        number = free.pop() if free else inner
        known[number] = inner
        return number

    def let_go(number: int) -> None:
        r.free(known.pop(number))
        free.append(number)

    return r._replace(open=opened, free=let_go, call=lambda x, number, columns: r.call(x, known[number], columns))


def _found_at_trace(r: Runners) -> Runners:
    """The compiled graph keeps the object that it was traced with: the first of that width."""
    import torch

    first: dict[int, int] = {}

    def opened(columns: int, seed: int) -> int:
        number = r.open(columns, seed)
        first.setdefault(columns, number)
        return number

    def called(x: torch.Tensor, number: int, columns: int) -> torch.Tensor:
        tracing = torch.compiler.is_compiling()
        made: torch.Tensor = r.call(x, first[columns] if tracing else number, columns)
        return made

    return r._replace(open=opened, call=called)


def _width_of_first(r: Runners) -> Runners:
    """The fake announces the width of the first object."""
    first: list[int] = []

    def opened(columns: int, seed: int) -> int:
        first.append(columns)
        return r.open(columns, seed)

    return r._replace(open=opened, call=lambda x, number, columns: r.call(x, number, first[0]))


def _free_answers(r: Runners) -> Runners:
    """What is let go stays where it is."""
    return r._replace(free=lambda number: None)


disabled, locked, by_folder = OpFault(call=_disabled), OpFault(call=_locked), OpFault(call=_by_folder)
each_size = OpFault(call=_each_size)
numbers_again, found_at_trace = OpFault(runners=_numbers_again), OpFault(runners=_found_at_trace)
width_of_first, free_answers = OpFault(runners=_width_of_first), OpFault(runners=_free_answers)
fake_shape = OpFault(fake=_wider)
fake_dtype = OpFault(fake=_half)
fake_stride = OpFault(fake=_turned)
fake_batch = OpFault(fake=_batch_of_eight)
returns_input = OpFault(body=_returns_input)
returns_buffer = OpFault(body=_returns_buffer)
mutates_input = OpFault(body=_mutates_input)
graph_break = OpFault(call=_broken)
branching = OpFault(call=_branching)
