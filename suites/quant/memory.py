"""How much memory a call takes beside its inputs."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")


def peak(call: Callable[[], T]) -> tuple[T, int]:
    """(its result, bytes at most at one time): by CUDA's allocator, or by the tensors alive in a call on a CPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        on_gpu = torch.cuda.max_memory_allocated() - before
        if on_gpu:
            return result, on_gpu
    with _Alive() as alive:
        result = call()
    return result, alive.most


class _Alive(TorchDispatchMode):
    """Counts storages that operators return, as long as a tensor holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: Counter[int] = Counter()
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_place(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and (self.holders[_place(tensor)] or _place(tensor) not in given):
                self._hold(tensor)
        self.most = max(self.most, self.now)
        return made

    def _hold(self, tensor: torch.Tensor) -> None:
        place, size = _place(tensor), tensor.untyped_storage().nbytes()
        self.holders[place] += 1
        if self.holders[place] == 1:
            self.now += size
        weakref.finalize(tensor, self._let_go, place, size)

    def _let_go(self, place: int, size: int) -> None:
        self.holders[place] -= 1
        if not self.holders[place]:
            self.now -= size


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
