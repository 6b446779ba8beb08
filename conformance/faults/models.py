"""The seam of whole models: the checkpoint that the loader is handed, its refusals, and what its parameters hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from conformance.errors import StackRefused
from conformance.stacks.model_protocol import ELEMENT, Coded, FromFile, ModelLoader, ModelRequest, WholeModel

if TYPE_CHECKING:
    import torch

_CHUNK = 16 << 20


class ModelFault(NamedTuple):
    """Each hook may be None.

    `hand` changes one tensor that is about to be loaded (None: it is dropped, and nobody notices), `file` where in a
    file one is read from. `spoil` changes a parameter's bytes (flat uint8), in place, whenever they are read; `began`
    says whether that is before any load. `blind`: a wrong checkpoint of that mutation is loaded without a word. `says`
    changes the words of a refusal.
    """

    hand: Callable[[ModelRequest, Coded], Coded | None] | None = None
    spoil: Callable[[ModelRequest, str, torch.Tensor, int, bool], None] | None = None
    blind: str = ""
    file: Callable[[ModelRequest, FromFile], FromFile] | None = None
    says: Callable[[str], str] | None = None


class FaultyModelLoader:
    def __init__(self, inner: ModelLoader, fault: ModelFault):
        self._inner, self._fault = inner, fault

    def open_model(self, request: ModelRequest) -> WholeModel:
        return _FaultyModel(self._inner.open_model(request), self._fault, request)


class _FaultyModel:
    def __init__(self, inner: WholeModel, fault: ModelFault, request: ModelRequest):
        self._inner, self._fault, self._request = inner, fault, request
        self._right: dict[str, tuple[int, ...]] = {}
        self._began = True
        self.info = inner.info

    def fill(self, value: int) -> None:
        self._inner.fill(value)
        self._began = False

    def load(self, tensors: list[Coded]) -> None:
        self._right = self._right or {one.name: one.shape for one in tensors}
        handed = tensors
        if self._fault.hand:
            changed = [self._fault.hand(self._request, one) for one in tensors]
            handed = [one for one in changed if one]
        try:
            self._inner.load(handed)
        except StackRefused as refusal:
            dropped = len(handed) < len(tensors)
            if dropped or self._fault.blind in _wrong(self._right, tensors):
                return
            raise StackRefused(self._fault.says(str(refusal)) if self._fault.says else str(refusal)) from None

    def load_files(self, tensors: list[FromFile]) -> None:
        change = self._fault.file
        self._inner.load_files([change(self._request, one) for one in tensors] if change else tensors)

    def read(self, parameter: str, first: int, last: int) -> torch.Tensor:
        if self._fault.spoil is None:
            return self._inner.read(parameter, first, last)
        import torch

        stored = self.info.parameters[parameter]
        starts = range(0, stored.nbytes, _CHUNK)
        whole = torch.cat([self._inner.read(parameter, s, min(s + _CHUNK, stored.nbytes)).clone() for s in starts])
        self._fault.spoil(self._request, parameter, whole, ELEMENT[stored.dtype], self._began)
        return whole[first:last]

    def close(self) -> None:
        self._inner.close()


def _wrong(right: dict[str, tuple[int, ...]], tensors: list[Coded]) -> set[str]:
    """The mutations that a checkpoint shows against the one that was loaded first."""
    names = [one.name for one in tensors]
    missing, unknown = set(right) - set(names), set(names) - set(right)
    found = set()
    if missing and unknown:
        found.add("renamed")
    elif missing:
        found |= {"removed"} | ({"scale_missing"} if all(name.endswith(".scale") for name in missing) else set())
    if len(names) > len(set(names)):
        found.add("doubled")
    if any(right.get(one.name, one.shape) != one.shape for one in tensors):
        found.add("transposed")
    return found
