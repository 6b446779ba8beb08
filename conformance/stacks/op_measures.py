"""What a custom operator does, measured where it can be called: on either side of a worker's channel, so torch alone.

Nothing here says what is due: that is the suite's. An operator is given as op_protocol.CustomOp.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

#: What opcheck answers where nothing is amiss.
SUCCESS = "SUCCESS"


def has_fake(op: Any) -> bool:
    """Can it be traced with tensors that hold nothing? By a fake, a Meta or a composite kernel that is registered; and
    what only writes into its arguments and returns nothing needs none."""
    import torch
    from torch._library.custom_ops import OPDEFS
    from torch._library.simple_registry import singleton

    schema, name = op._schema, op._schema.name
    if schema.is_mutable and not schema.returns:
        return True
    if name in OPDEFS:  # by torch.library.custom_op: all of them have a composite kernel, which is not a fake
        return OPDEFS[name]._abstract_fn is not None
    kernels = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    if any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in kernels):
        return True
    return singleton.find(name).fake_impl.kernel is not None


def opcheck(op: Any, test: str, batch: int) -> str:
    """What one test of torch.library.opcheck says."""
    import torch

    with _bytes_compared():
        told = torch.library.opcheck(op.op, op.arguments(batch, 0), test_utils=test, raise_exception=False)
    return str(told[test])


@contextlib.contextmanager
def _bytes_compared() -> Iterator[None]:
    """opcheck finds mutations by `torch.allclose`, which has no kernel for float8, and lets small ones pass: inside, it
    compares bytes, and nobody else does."""
    import torch
    from torch._subclasses import schema_check_mode

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def allclose(self, a: Any, b: Any, **_: Any) -> bool:
            return same(a, b)

    setattr(schema_check_mode, "torch", Torch())  # noqa: B010
    try:
        yield
    finally:
        setattr(schema_check_mode, "torch", torch)  # noqa: B010


def same(a: Any, b: Any) -> bool:
    """Bits: NaN equals itself, and the sign of a zero counts."""
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and bool((_bytes(a) == _bytes(b)).all())


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def tensors(value: Any) -> list[Any]:
    """Those of a result, or of a call's arguments."""
    import torch

    parts = value if isinstance(value, (tuple, list)) else (value,)
    return [one for one in parts if isinstance(one, torch.Tensor)]


def copied(arguments: Any) -> tuple[Any, ...]:
    import torch

    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)


def _written(op: Any, arguments: Any) -> list[Any]:
    """The tensors among them that the schema lets the operator write: results, too."""
    import torch

    declared = [one.alias_info is not None and one.alias_info.is_write for one in op.op._schema.arguments]
    return [a for a, mutable in zip(arguments, declared, strict=False) if mutable and isinstance(a, torch.Tensor)]


#: Calls while the first one's results are held: as many slices as a ring of buffers may have, and one.
_HELD = 9


def lasting(op: Any, batch: int) -> tuple[bool, bool]:
    """One call, and others on other inputs. (is a result of the first another after them?, does a returned tensor lie
    in memory of an input, or of what a later one returns?). Results are what is returned and what is written."""
    first = op.arguments(batch, 0)
    before = tensors(op.op(*first))
    results = [*before, *_written(op, first)]
    kept = [one.clone() for one in results]
    changed, others = False, {_memory(one) for one in tensors(first) if one.numel()}
    for number in range(1, _HELD + 1):
        again = tensors(op.op(*op.arguments(batch, number)))
        others |= {_memory(one) for one in again if one.numel()}
        changed = changed or not all(same(now, then) for now, then in zip(results, kept, strict=True))
    return changed, any(_memory(one) in others for one in before if one.numel())


def untouched(op: Any) -> list[str]:
    """Arguments that the schema lets the operator write, and that no call at either batch, on two inputs, changes."""
    import torch

    left = {one.name for one in op.op._schema.arguments if one.alias_info is not None and one.alias_info.is_write}
    for batch in op.batches if left else ():
        for number in (0, 1):
            arguments = op.arguments(batch, number)
            kept = copied(arguments)
            op.op(*arguments)
            for told, now, then in zip(op.op._schema.arguments, arguments, kept, strict=False):
                if isinstance(now, torch.Tensor) and not same(now, then):
                    left.discard(told.name)
    return sorted(left)


def _memory(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Findings say what Dynamo would warn of. Nothing compiled before is in the way, and nothing is left."""
    import torch._dynamo

    logs = [logging.getLogger(f"torch.{name}") for name in ("_dynamo", "_subclasses.fake_tensor")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    torch._dynamo.reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
        torch._dynamo.reset()


def explained(op: Any) -> tuple[int, str, str]:
    """(graph breaks, Dynamo's reason for the first, or why the code round it cannot be traced at all)."""
    import torch._dynamo

    with quiet():
        try:
            told = torch._dynamo.explain(_model(op))(*op.arguments(op.batches[0], 0))
        except Exception as error:
            return 0, "", f"{type(error).__name__}: {error}"
    reason = told.break_reasons[0].reason if told.break_reasons else ""
    return max(told.graph_break_count, len(told.break_reasons)), reason, ""  # the count is of graphs, less one


def compiled(op: Any) -> list[tuple[int, bool, str]]:
    """(batch, are results and all that was written eager's bits?, what was raised): one program for both batches."""
    import torch

    with quiet():
        model = _model(op)
        whole = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
        return [(batch, *_compared(model, whole, op.arguments(batch, 0))) for batch in op.batches]


def _model(op: Any) -> Callable[..., Any]:
    """Code that calls it: what is hidden from the compiler breaks its caller's graph."""

    def model(*arguments: Any) -> Any:
        made = op.call(*arguments)
        if isinstance(made, (tuple, list)):
            return [_used(one) for one in made]
        return None if made is None else _used(made)

    return model


def _used(made: Any) -> Any:
    return made + 0.0 if made.dtype.is_floating_point and made.dtype.itemsize > 1 else made.clone()


def _compared(model: Callable[..., Any], whole: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, str]:
    eager, traced = copied(arguments), copied(arguments)
    want = tensors(model(*eager))
    try:
        got = tensors(whole(*traced))
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
    want, got = [*want, *tensors(eager)], [*got, *tensors(traced)]
    return len(want) == len(got) and all(same(a, b) for a, b in zip(want, got, strict=True)), ""


def programs(op: Any, batches: tuple[int, ...]) -> tuple[int, str]:
    """(how many are compiled for these batches, one after the other; what was raised)."""
    import torch

    made: list[int] = []
    with quiet():
        whole = torch.compile(op.call, fullgraph=True, backend=partial(_counting, made))
        try:
            for batch in batches:
                whole(*op.arguments(batch, 0))
        except Exception as error:
            return len(made), f"{type(error).__name__}: {error}"
    return len(made), ""


def _counting(made: list[int], graph: Any, example_inputs: Any) -> Any:
    made.append(1)
    return graph.forward
