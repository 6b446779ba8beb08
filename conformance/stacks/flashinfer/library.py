"""The functions of FlashInfer that this adapter calls: as they are, or bound to their signatures and noted down.

Noting down needs no GPU: each call is bound to the signature of the installed FlashInfer, and answered with memory of
the dtype and shape that the function documents.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch

from conformance.errors import StackMissing
from conformance.stacks.protocols import MoeCall, TensorInfo

Function = Callable[..., Any]
_SWIZZLE_ROWS, _SWIZZLE_COLS, _GROUP = 128, 4, 32


class Library(NamedTuple):
    cutlass_fused_moe: Function
    mxfp8_quantize: Function
    block_scale_interleave: Function
    interleave_weights: Function
    interleave_scales: Function


def imported(name: str) -> ModuleType:
    """A module of FlashInfer. Raises StackMissing where there is none in the interpreter that runs its kernels."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise StackMissing(
            f"{name} is not importable in {sys.executable}: {error}; pip install flashinfer-python there (the "
            "interpreter of --python serves quantisers alone)"
        ) from None


def real() -> Library:
    """Raises StackMissing without FlashInfer."""
    flashinfer, fused_moe = imported("flashinfer"), imported("flashinfer.fused_moe")
    return Library(
        fused_moe.cutlass_fused_moe,
        flashinfer.mxfp8_quantize,
        flashinfer.block_scale_interleave,
        fused_moe.interleave_moe_weights_for_sm90_mixed_gemm,
        fused_moe.interleave_moe_scales_for_sm90_mixed_gemm,
    )


def noting(calls: list[MoeCall]) -> Library:
    """The same functions by name; nothing of them runs, and each call is appended to `calls`."""
    answers: tuple[Function, ...] = (_output, _quantized, _flat, _like, _like)
    return Library(
        *(noted(function, answer, calls) for function, answer in zip(real(), answers, strict=True)),
    )


def noted(function: Function, answer: Function, calls: list[MoeCall]) -> Function:
    """`function` bound and noted down, and `answer` in its place."""
    signature = inspect.signature(function)

    def call(*positional: Any, **named: Any) -> Any:
        name = getattr(function, "__name__", str(function))
        try:
            given = signature.bind(*positional, **named).arguments
        except TypeError as error:
            calls.append(MoeCall(name, refused=str(error)))
            return answer(*positional, **named)
        bound = MoeCall(name)
        for argument, value in given.items():
            if signature.parameters[argument].kind is inspect.Parameter.VAR_KEYWORD:
                for name, one in value.items():
                    _note(bound, name, one)
            else:
                _note(bound, argument, value)
        calls.append(bound)
        return answer(*positional, **named)

    return call


def _note(call: MoeCall, name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        call.tensors[name] = TensorInfo(dtype, tuple(value.shape), value.is_contiguous())
    elif isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor):
        for index, one in enumerate(value):
            _note(call, f"{name}[{index}]", one)
    elif isinstance(value, Enum):
        call.values[name] = f"{type(value).__name__}.{value.name}"
    else:
        call.values[name] = str(value).removeprefix("torch.")


def _output(**named: Any) -> None:
    del named


def _quantized(x: torch.Tensor, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes like x; scales padded to whole tiles of 128 rows and 4 columns, flat."""
    rows = -(-x.shape[0] // _SWIZZLE_ROWS) * _SWIZZLE_ROWS
    cols = -(-x.shape[1] // _GROUP // _SWIZZLE_COLS) * _SWIZZLE_COLS
    return torch.empty(x.shape, dtype=torch.float8_e4m3fn), torch.empty(rows * cols, dtype=torch.uint8)


def _flat(scales: torch.Tensor) -> torch.Tensor:
    return torch.empty(scales.numel(), dtype=scales.dtype)


def _like(data: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty(data.shape, dtype=data.dtype)
