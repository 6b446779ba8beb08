"""Faults of custom operators: a wrong fake, an alias, a hidden mutation, a graph break."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from conformance.stacks.op_protocol import CustomOp

_NUMBER = itertools.count()


class OpFault(NamedTuple):
    """Each hook may be None. `body` makes the result from the clean operator and its arguments, `fake` changes what the
    clean fake announces, `call` the Python function round the operator."""

    body: Callable[[Callable[..., torch.Tensor], tuple[Any, ...]], torch.Tensor] | None = None
    fake: Callable[[torch.Tensor], torch.Tensor] | None = None
    call: Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]] | None = None


def planted(op: CustomOp, fault: OpFault) -> CustomOp:
    """Another operator of the same schema with the fault in it."""
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
    if "buffer" not in _BUFFER:
        _BUFFER["buffer"] = made.new_empty(64, made.shape[1])
    return _BUFFER["buffer"][: len(made)].copy_(made)


_BUFFER: dict[str, torch.Tensor] = {}


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


fake_shape = OpFault(fake=_wider)
fake_dtype = OpFault(fake=_half)
fake_stride = OpFault(fake=_turned)
fake_batch = OpFault(fake=_batch_of_eight)
returns_input = OpFault(body=_returns_input)
returns_buffer = OpFault(body=_returns_buffer)
mutates_input = OpFault(body=_mutates_input)
graph_break = OpFault(call=_broken)
branching = OpFault(call=_branching)
