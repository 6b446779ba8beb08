"""The seams of the quant layer: any method of a quantiser, of a grouped GEMM (with SwiGLU behind it, too), of a
linear layer, of a MoE runner, or of hyper-connections (layer `attention`) may be another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

_NONE: Mapping[str, Callable[..., Any]] = MappingProxyType({})


class QuantFault(NamedTuple):
    """Each maps a method's name to what is called in its place, the clean object first: `hook(inner, *arguments)`. A
    class is a hook that remembers, made anew for each planting."""

    quantizer: Mapping[str, Callable[..., Any]] = _NONE
    gemm: Mapping[str, Callable[..., Any]] = _NONE
    swiglu: Mapping[str, Callable[..., Any]] = _NONE
    linear: Mapping[str, Callable[..., Any]] = _NONE
    moe_runner: Mapping[str, Callable[..., Any]] = _NONE
    hyper: Mapping[str, Callable[..., Any]] = _NONE

    def planted(self, part: str, opened: Callable[[], Any]) -> Callable[[], Any]:
        """What opens that part of a stack, with the fault in it."""
        hooks: Mapping[str, Callable[..., Any]] = getattr(self, part)
        if not hooks:
            return opened
        fresh = {name: hook() if isinstance(hook, type) else hook for name, hook in hooks.items()}
        return lambda: Faulty(opened(), fresh)


class Faulty:
    def __init__(self, inner: Any, hooks: Mapping[str, Callable[..., Any]]):
        self._inner, self._hooks = inner, hooks

    def __getattr__(self, name: str) -> Any:
        clean = getattr(self._inner, name)
        return partial(self._hooks[name], self._inner) if name in self._hooks else clean
