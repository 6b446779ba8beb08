"""Stacks by name, from the entry-point group `conformance.stacks`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from conformance.errors import StackMissing, UsageError, nearest

if TYPE_CHECKING:
    from conformance.stacks.protocols import Stack, StackOptions

_GROUP = "conformance.stacks"
#: What `--endpoint` is judged as: no plug-in, and no name for `--stack`.
ENDPOINT = "endpoint"
#: Entry points whose stacks may be opened in the harness's own process.
_AT_HOME = (
    "conformance.stacks.reference:open_stack",
    "conformance.stacks.vllm:open_stack",
    "conformance.stacks.libraries:torchao",
    "conformance.stacks.libraries:compressed_tensors",
    "conformance.stacks.libraries:ml_dtypes",
)
#: Entry points of libraries of kernels: they are told what to run, and choose nothing by themselves.
_KERNEL_LIBRARIES = (
    "conformance.stacks.flashinfer:open_stack",
    "conformance.stacks.libraries:torchao",
    "conformance.stacks.libraries:compressed_tensors",
    "conformance.stacks.libraries:ml_dtypes",
)


@cache
def _known() -> dict[str, EntryPoint]:
    """Raises UsageError where two packages claim one name: which of them would be judged?"""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=_GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise UsageError(f"stack {point.name} is claimed by {other.value} and {point.value}: uninstall one of them")
    return found


def names() -> list[str]:
    return sorted(_known())


def open_stack(name: str, options: StackOptions) -> Stack:
    """Raises UsageError for an unknown name, StackMissing where the plug-in itself cannot be imported."""
    if not _known():
        raise UsageError("no stacks are installed: run `pip install -e .` in the clone")
    if name == ENDPOINT:
        from conformance.stacks.endpoint import open_stack as opened

        found: Any = opened(options)  # has no planner and no loader, as a kernel library has none
        server: Stack = found
        return server
    if name not in _known():
        raise nearest(name, names(), "stack")
    try:
        opener = _known()[name].load()
    except Exception as error:
        raise StackMissing(f"stack {name}: {type(error).__name__}: {error}") from error
    stack: Stack = opener(options)
    return stack


def is_foreign(name: str) -> bool:
    """Does foreign code run wherever this stack is opened? So it does with installed plug-ins and kernel libraries;
    our own reference has none; vLLM and the quantisers of libraries live in workers of their own. An unknown name is
    not."""
    point = _known().get(name)
    return point is not None and getattr(point, "dist", None) is not None and point.value not in _AT_HOME


def is_kernel_library(name: str) -> bool:
    """By our own data, before anything of it is opened. A plug-in is taken for a whole stack: more is asked of it."""
    point = _known().get(name)
    return point is not None and point.value in _KERNEL_LIBRARIES


def is_url(words: str) -> bool:
    return words.startswith(("http://", "https://"))


def described() -> dict[str, str]:
    """name -> `module:function (distribution)`."""
    return {
        name: f"{point.value} ({point.dist.name if point.dist else 'unknown distribution'})"
        for name, point in sorted(_known().items())
    }
