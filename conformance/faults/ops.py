"""Faults of custom operators: a wrong fake, an alias, a hidden mutation, a graph break.

Planted where the operators are: a stack's worker is sent this file. A fault that an operator has no place for (a fake
of what returns nothing, a runner of what has none) leaves it as it is.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from conformance.stacks.op_protocol import Runners

_NUMBER = itertools.count()


class OpFault(NamedTuple):
    """Each hook may be None. `body` makes the result from the clean operator and its arguments, `fake` changes what the
    clean fake announces (of several tensors the first), `call` the Python function round the operator."""

    body: Callable[[Callable[..., Any], tuple[Any, ...]], Any] | None = None
    fake: Callable[[torch.Tensor], torch.Tensor] | None = None
    call: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    #: Changes the objects that are found by number, where the operator has any.
    runners: Callable[[Runners], Runners] | None = None


def planted(op: Any, fault: OpFault) -> Any:
    """Another operator (a CustomOp) of the same schema with the fault in it. What lives elsewhere plants it there."""
    if elsewhere := getattr(op, "planted", None):
        return elsewhere(fault)
    if fault.runners:
        return op._replace(runners=fault.runners(op.runners)) if op.runners else op
    if fault.call:
        return op._replace(call=fault.call(op.call))
    if not op.op._schema.returns and not fault.body:
        return op
    return _registered(op, fault)


def _registered(op: Any, fault: OpFault) -> Any:
    import torch
    from torch._library.utils import has_fake_kernel

    namespace, name = "conformance_planted", f"fault{next(_NUMBER)}"
    schema = re.sub(r"\(\$(\d+)! -> \)", r"(a\1!)", str(op.op._schema))  # what `Tensor!` is printed as
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(name + schema[schema.index("(") :])
    clean, body, fake = op.op, fault.body, fault.fake

    def real(*arguments: Any) -> Any:
        return body(clean, arguments) if body else clean(*arguments)

    def announced(*arguments: Any) -> Any:
        made = clean(*arguments)
        return _first_changed(made, fake) if fake else made

    for key in ("CPU", "CUDA"):
        library.impl(name, real, key)
    if clean._schema.returns and has_fake_kernel(clean):
        torch.library.register_fake(f"{namespace}::{name}", announced, lib=library)
    found = getattr(getattr(torch.ops, namespace), name).default
    _KEPT.append(library)
    return op._replace(op=found, call=found)


#: An operator is gone with its library.
_KEPT: list[Any] = []


def _first_changed(made: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Of several results the first."""
    return (change(made[0]), *made[1:]) if isinstance(made, (tuple, list)) else change(made)


def _each(made: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """All results, if there are any."""
    if isinstance(made, (tuple, list)):
        return tuple(change(one) for one in made)
    return None if made is None else change(made)


def _wider(made: torch.Tensor) -> torch.Tensor:
    return made.new_empty(*made.shape[:-1], 2 * made.shape[-1])


def _half(made: torch.Tensor) -> torch.Tensor:
    import torch

    return made.new_empty(made.shape, dtype=torch.float16 if made.dtype == torch.bfloat16 else torch.bfloat16)


def _turned(made: torch.Tensor) -> torch.Tensor:
    return made.new_empty(*made.shape[:-2], made.shape[-1], made.shape[-2]).mT


def _batch_of_eight(made: torch.Tensor) -> torch.Tensor:
    return made.new_empty(8, *made.shape[1:])


def _returns_input(clean: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Computed in place, in a corner of the first input that is large enough."""
    import torch

    def view(made: torch.Tensor) -> torch.Tensor:
        for one in arguments:
            if not isinstance(one, torch.Tensor) or (one.dtype, one.dim()) != (made.dtype, made.dim()):
                continue
            if all(n >= due for n, due in zip(one.shape, made.shape, strict=True)):
                return one[tuple(slice(due) for due in made.shape)]
        return made

    made = clean(*arguments)
    return made if made is None else _first_changed(made, view)


def _returns_buffer(clean: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    def kept(made: torch.Tensor) -> torch.Tensor:
        key = tuple(made.shape[1:]), made.dtype
        buffer = _BUFFERS.setdefault(key, made.new_empty(64, *made.shape[1:]))
        return buffer[: len(made)].copy_(made)

    made = clean(*arguments)
    return made if made is None else _first_changed(made, kept)


_BUFFERS: dict[Any, torch.Tensor] = {}


def _mutates_input(clean: Any, arguments: tuple[Any, ...]) -> Any:
    """The first of numbers that the schema says nothing of."""
    import torch

    made = clean(*arguments)
    for told, one in zip(clean._schema.arguments, arguments, strict=False):
        numbers = isinstance(one, torch.Tensor) and one.is_floating_point() and one.dtype.itemsize > 1
        if numbers and not told.alias_info:
            one.mul_(0.5)
            break
    return made


def _broken(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any) -> Any:
        import torch._dynamo

        made = call(*arguments)
        torch._dynamo.graph_break()
        return _each(made, lambda one: one + 0)

    return wrapped


def _branching(call: Callable[..., Any]) -> Callable[..., Any]:
    """Python looks at a number of the first result, or of the first argument where nothing is returned."""

    def wrapped(*arguments: Any) -> Any:
        made = call(*arguments)
        seen = arguments[0] if made is None else made[0] if isinstance(made, (tuple, list)) else made
        return made if float(seen.abs().max()) < 1e9 else _each(made, lambda one: one * 0)

    return wrapped


def _disabled(call: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    hidden: Callable[..., Any] = torch.compiler.disable(call)
    return hidden


def _locked(call: Callable[..., Any]) -> Callable[..., Any]:
    """A table is looked up under a lock on the way to the kernel."""
    lock = threading.Lock()

    def wrapped(*arguments: Any) -> Any:
        with lock:
            return call(*arguments)

    return wrapped


def _by_folder(call: Callable[..., Any]) -> Callable[..., Any]:
    """The cache of compiled kernels is looked for by the working folder."""

    def wrapped(*arguments: Any) -> Any:
        return _each(call(*arguments), lambda one: one * len(Path.cwd().parts[:1]))

    return wrapped


def _each_size(call: Callable[..., Any]) -> Callable[..., Any]:
    """Python counts rows, so that each batch size is a program of its own."""

    def wrapped(*arguments: Any) -> Any:
        rows = sum(1 for _ in range(arguments[0].shape[0]))
        return _each(call(*arguments), lambda one: one * (rows > 0))

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
