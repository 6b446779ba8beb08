"""The reference stack's one custom operator: SwiGLU with its limit, opaque to torch.compile."""

from __future__ import annotations

from typing import Any

import torch

from conformance.stacks.op_protocol import CustomOp
from conformance.stacks.reference_moe import swiglu

_WIDTH, _LIMIT = 48, 10.0


@torch.library.custom_op("conformance_reference::swiglu", mutates_args=())
def _swiglu(x: torch.Tensor, limit: float) -> torch.Tensor:
    """x (M, 2 N) float32, gate | up -> (M, N)."""
    gate, up = x.chunk(2, dim=1)
    return swiglu(gate, up, limit, 1.0, 0.0).clone()


@_swiglu.register_fake
def _(x: torch.Tensor, limit: float) -> torch.Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


def _called(x: torch.Tensor, limit: float) -> torch.Tensor:
    made: torch.Tensor = torch.ops.conformance_reference.swiglu(x * 1.0, limit)
    return made + 0.0


def _arguments(batch: int, number: int) -> tuple[Any, ...]:
    rng = torch.Generator().manual_seed(1000 * batch + number)
    return 8 * torch.randn(batch, 2 * _WIDTH, generator=rng), _LIMIT


def listed() -> list[CustomOp]:
    return [CustomOp(torch.ops.conformance_reference.swiglu.default, _called, _arguments)]
