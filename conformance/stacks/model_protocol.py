"""The part of layer `loader` that takes whole models: checkpoint tensors in by name, parameters out as bytes.

A stack that has it offers `model_loader()` beside `loader()`. Where a tensor goes is seen; by `homes` the adapter says
where it belongs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import torch

    from conformance.geometry import Geometry

#: Bytes of one element, by safetensors' names of dtypes and by torch's.
ELEMENT = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "I32": 4,
    "I64": 8,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float8_e4m3fn": 1,
    "float8_e8m0fnu": 1,
    "uint8": 1,
    "int8": 1,
    "int32": 4,
    "int64": 8,
}


class ModelRequest(msgspec.Struct, frozen=True):
    """One rank's model with its first `layers` layers and `experts` routed experts a layer, top-k 1.

    `draft`: the multi-token-prediction model instead. `force`: go round the stack's guard, as ExpertsRequest has it.
    """

    geometry: Geometry
    tp: int
    rank: int
    backend: str
    capability: tuple[int, int] | None
    attention: str | None
    force: bool
    layers: int
    experts: int
    draft: bool = False
    #: Names of the checkpoint's tensors, for the adapter to say where each belongs.
    names: tuple[str, ...] = ()


class Stored(msgspec.Struct, frozen=True):
    """A parameter as built: torch's name of its dtype, and its shape in elements."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = ELEMENT[self.dtype]
        for length in self.shape:
            size *= length
        return size


class ModelInfo(msgspec.Struct):
    parameters: dict[str, Stored]
    #: The stack's own name of the model class.
    model: str
    #: Checkpoint tensor -> the parameter that it belongs in, as far as the adapter knows this version's names.
    homes: dict[str, str] = {}
    notes: list[str] = []


class Coded(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint tensor in which the element at index i of axis `dim` is `codes[i]`, whatever its other indices.

    `dtype` is safetensors' name; `codes` holds shape[dim] elements, little-endian, as a file would.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    dim: int
    codes: bytes


class FromFile(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of `full` shape that lies in a file from byte `offset` on, row-major, of which the first `shape[d]`
    indices along every axis are handed over (a model with fewer experts has a smaller router)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    full: tuple[int, ...]
    path: str
    offset: int


class WholeModel(Protocol):
    """One rank's model, open for loading. Right after opening, memory that nobody initialised is NaN, or the largest
    integer."""

    info: ModelInfo

    def fill(self, value: int) -> None:
        """Overwrite every byte of every parameter with `value`."""

    def load(self, tensors: list[Coded]) -> None:
        """Hand these tensors, in this order, to the real loader, as a whole checkpoint: what the stack checks at the
        end of loading is checked. Raises StackRefused with the stack's words."""

    def load_files(self, tensors: list[FromFile]) -> None:
        """The same with real bytes."""

    def read(self, parameter: str, first: int, last: int) -> torch.Tensor:
        """Bytes [first, last) in memory order, uint8. Valid until the next call."""

    def close(self) -> None: ...


class ModelLoader(Protocol):
    def open_model(self, request: ModelRequest) -> WholeModel:
        """Raises StackRefused (the stack's own validation), NotSupported, AdapterError, StackCrashed, StackTimeout."""
