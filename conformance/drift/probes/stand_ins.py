"""Stand-ins for Mirage's compiled parts (core, kernel graphs): they record what is attached and registered."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch


class Named:
    """A data type or another constant of mirage.core, known by its name only."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Tensor:
    """A DTensor: dimensions, and where it came from."""

    def __init__(self, identifier: int, dims: Iterable[int], dtype: Any) -> None:
        self.id = identifier
        self.dims = [int(d) for d in dims]
        self.num_dims = len(self.dims)
        self.dtype = dtype
        self.name = f"tensor_{identifier}"
        self.origin = "new"
        self.keys: list[str] = []

    def dim(self, index: int) -> int:
        return self.dims[index]

    def described(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dims": self.dims,
            "dtype": str(self.dtype),
            "origin": self.origin,
            "keys": self.keys,
        }


class Recorder:
    """All tensors, and all layer calls with the tasks that each registered."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.layers: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None

    def new(self, dims: Iterable[int], dtype: Any = None) -> Tensor:
        self.tensors.append(Tensor(len(self.tensors), dims, dtype))
        return self.tensors[-1]

    def task(self, name: str, tensors: list[Tensor], grid: Any) -> None:
        entry = {"name": name, "tensors": [t.id for t in tensors if isinstance(t, Tensor)], "grid": list(grid)}
        if self.open is None:
            self.layers.append({"layer": "", "where": "", "arguments": {}, "tasks": [entry]})
        else:
            self.open["tasks"].append(entry)


class ThreadblockGraph:
    """CyTBGraph and TBGraph in one: keeps the grid."""

    def __init__(self, first: Any, *_: Any, **__: Any) -> None:
        self.grid: tuple[int, ...] = first.grid if isinstance(first, ThreadblockGraph) else tuple(first)

    def new_input(self, *_: Any, **__: Any) -> None:
        return None


class KernelGraph:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._last: list[Tensor] = []

    def new_input(self, dims: Any, strides: Any = None, dtype: Any = None) -> Tensor:
        return self.recorder.new(dims, dtype)

    def attach_torch_tensor(self, tensor: Tensor, source: torch.Tensor, name: str) -> None:
        tensor.name, tensor.origin = name, "attached"
        tensor.keys = sorted(getattr(source, "origin_keys", ()))

    def attach_cuda_tensor(self, tensor: Tensor, name: str) -> None:
        tensor.name = name

    def attach_nvshmem_tensor(self, tensor: Tensor, name: str) -> None:
        tensor.name, tensor.origin = name, "nvshmem"

    def fuse_tensors(self, inputs: list[Tensor], dim: int, groups: int, name: str) -> Tensor:
        fused = self.recorder.new([sum(t.dims[0] for t in inputs), *inputs[0].dims[1:]], inputs[0].dtype)
        fused.name, fused.origin = name, "attached"
        fused.keys = sorted({key for t in inputs for key in t.keys})
        return fused

    shuffle_tensors = fuse_tensors

    def customized(self, tensors: list[Tensor], _: Any) -> None:
        self._last = list(tensors)

    def register_task(self, graph: ThreadblockGraph, name: str, _: Any = None) -> None:
        self.recorder.task(name, self._last, graph.grid)


class _Core(types.ModuleType):
    """mirage.core: any data type by name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name)


class _AllReduce:
    """Registers one task `allreduce`: what it reads, and last what it writes."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def register_tasks(self, mpk: Any, tensors: dict[str, Tensor], grid_dim: Any, **_: Any) -> None:
        order = [tensors[name] for name in ("input", "residual", "output") if tensors.get(name) is not None]
        self.recorder.task("allreduce", order, grid_dim)


def install(root: Path, recorder: Recorder) -> None:
    """Make `mirage.mpk` importable from the checkout, with stand-ins for what is compiled or asks the hardware."""
    types_ = ["bfloat16", "float16", "float32", "float8_e4m3", "int8", "int32", "int64", "uint8", "uint16", "uint32"]
    types_ += ["uint64", "dtype", "DTensor"]
    core = _Core("mirage.core")
    core.__dict__.update({name: Named(name) for name in types_})
    core.__dict__["CyTBGraph"] = ThreadblockGraph
    core.__dict__["CyKNGraph"] = lambda *_, **__: recorder
    core.__dict__["convert_torch_type_to_dtype"] = lambda dtype: Named(str(dtype).rsplit(".", 1)[-1])
    core.__dict__["__all__"] = [*types_, "CyTBGraph", "CyKNGraph", "convert_torch_type_to_dtype"]
    kernel = types.ModuleType("mirage.kernel")
    kernel.__dict__.update(KNGraph=KernelGraph, TBGraph=ThreadblockGraph, get_key_paths=lambda: ("", "", ""))
    multigpu = types.ModuleType("mirage.mpk.multigpu")
    multigpu.__dict__["auto_select_allreduce_implementation"] = lambda *_, **__: _AllReduce(recorder)
    home = root / "python" / "mirage"
    packages = {"mirage": home, "mirage.mpk": home / "mpk", "mirage.mpk.models": home / "mpk" / "models"}
    for name, folder in packages.items():  # their own __init__ import far more than the builder
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    sys.modules.update({"mirage.core": core, "mirage.kernel": kernel, "mirage.mpk.multigpu": multigpu})
