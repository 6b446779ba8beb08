"""The reference stack's custom operators, opaque to torch.compile: SwiGLU with its limit, and a product with weights
that are looked up by number."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from conformance.stacks.op_protocol import CustomOp, Runners
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


_WEIGHTS: dict[int, torch.Tensor] = {}
_NUMBER = itertools.count(1)


@torch.library.custom_op("conformance_reference::product", mutates_args=())
def _product(x: torch.Tensor, number: int, columns: int) -> torch.Tensor:
    """x (M, K) float32 -> (M, columns), by the weights of that number."""
    if number not in _WEIGHTS:
        raise LookupError(f"no runner has the number {number}")
    return x @ _WEIGHTS[number]


@_product.register_fake
def _(x: torch.Tensor, number: int, columns: int) -> torch.Tensor:
    return x.new_empty(x.shape[0], columns)


def _multiplied(x: torch.Tensor, number: int, columns: int) -> torch.Tensor:
    made: torch.Tensor = torch.ops.conformance_reference.product(x, number, columns)
    return made


def _tokens(batch: int, seed: int) -> torch.Tensor:
    return torch.randn(batch, _WIDTH, generator=torch.Generator().manual_seed(1000 * batch + seed))


def _open(columns: int, seed: int) -> int:
    number = next(_NUMBER)
    _WEIGHTS[number] = torch.randn(_WIDTH, columns, generator=torch.Generator().manual_seed(seed))
    return number


def _multiplying() -> CustomOp:
    columns = 24
    number = _open(columns, 0)
    runners = Runners(_open, lambda number: _WEIGHTS.__delitem__(number), _multiplied, _tokens)
    op = torch.ops.conformance_reference.product.default
    return CustomOp(op, _multiplied, lambda batch, seed: (_tokens(batch, seed), number, columns), runners=runners)


def listed() -> list[CustomOp]:
    return [CustomOp(torch.ops.conformance_reference.swiglu.default, _called, _arguments), _multiplying()]
