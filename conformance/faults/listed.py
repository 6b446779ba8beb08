"""The faults as a list to read: what each is, and which claims must catch it.

Their transforms need torch, which takes seconds to import; a list does not. Where torch is not there yet, the catalogue
is read with something inert in its place, and forgotten again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

_HEAVY = ("torch", "numpy", "references")
_FORGOTTEN = (*_HEAVY, "conformance")


class Listed(NamedTuple):
    id: str
    what: str
    claims: tuple[str, ...]


def listed() -> list[Listed]:
    if "torch" not in sys.modules:
        try:
            with _inert():
                return _read()
        except Exception:  # a transform that something inert cannot stand for: the long way
            pass
    return _read()


def _read() -> list[Listed]:
    from conformance.faults.catalogue import FAULTS

    return [Listed(fault.id, fault.what, tuple(fault.claims)) for fault in FAULTS.values()]


@contextmanager
def _inert() -> Iterator[None]:
    before, finder = dict(sys.modules), _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name not in before and name.split(".")[0] in _FORGOTTEN]:
            del sys.modules[name]


class _Inert:
    """Anything that is asked of it is inert again."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Inert()

    def __call__(self, *_: object, **__: object) -> _Inert:
        return _Inert()

    __getitem__ = __neg__ = __add__ = __sub__ = __mul__ = __truediv__ = __call__


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(_Inert(), name)


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in _HEAVY else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""
