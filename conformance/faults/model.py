"""Faults of whole models: tensors cut, placed, padded or dropped wrongly, and wrong checkpoints that go unnoticed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from conformance.faults.models import ModelFault
from conformance.stacks.model_protocol import ELEMENT, Coded, FromFile, ModelRequest

if TYPE_CHECKING:
    import torch

#: An element that is neither zero nor -inf, in every dtype: of a float, of FP8, of an E8M0 scale.
_GARBAGE = 0x30


def shifted(fragment: str, end: str = "", dim: int = 0, draft: bool = False) -> ModelFault:
    """Ranks above 0 read every tensor of that name (and ending) one stored unit too late along `dim`."""

    def hand(request: ModelRequest, one: Coded) -> Coded:
        mine = fragment in one.name and one.name.endswith(end) and request.draft == draft
        if not mine or one.dim != dim or request.rank == 0:
            return one
        size = ELEMENT[one.dtype]
        return msgspec.structs.replace(one, codes=one.codes[size:] + one.codes[:size])

    return ModelFault(hand=hand)


def swapped(first: str, second: str, draft: bool = False) -> ModelFault:
    """Two tensors of every layer change places."""

    def hand(request: ModelRequest, one: Coded) -> Coded:
        for a, b in ((first, second), (second, first)):
            if a in one.name and request.draft == draft:
                return msgspec.structs.replace(one, name=one.name.replace(a, b))
        return one

    return ModelFault(hand=hand)


def _rounded(request: ModelRequest, one: Coded) -> Coded:
    """F32 tensors lose what BF16 does not hold."""
    import torch

    if one.dtype != "F32" or request.draft:
        return one
    values = torch.frombuffer(bytearray(one.codes), dtype=torch.float32).bfloat16().float()
    return msgspec.structs.replace(one, codes=values.numpy().tobytes())


def far(pattern: str) -> ModelFault:
    """Tensors whose whole name fits are dropped without a word."""

    def hand(request: ModelRequest, one: Coded) -> Coded | None:
        return None if re.fullmatch(pattern, one.name) else one

    return ModelFault(hand=hand)


def dropped(fragment: str, draft: bool = False, uninitialised: bool = False) -> ModelFault:
    """Tensors of that name reach no parameter, without a word; and the parameter's memory is nobody's."""

    def hand(request: ModelRequest, one: Coded) -> Coded | None:
        return None if fragment in one.name and request.draft == draft else one

    def spoil(request: ModelRequest, parameter: str, data: torch.Tensor, element: int, began: bool) -> None:
        if began and fragment in parameter and request.draft == draft:
            data.fill_(0xFF)

    return ModelFault(hand=hand, spoil=spoil if uninitialised else None)


def stale_tail(*fragments: str, draft: bool = False) -> ModelFault:
    """On the last rank the last element of every such parameter holds something."""

    def spoil(request: ModelRequest, parameter: str, data: torch.Tensor, element: int, began: bool) -> None:
        mine = any(fragment in parameter for fragment in fragments) and request.draft == draft
        if mine and not began and request.rank == request.tp - 1:
            data[-element:] = _GARBAGE

    return ModelFault(spoil=spoil)


def _sink_zero(request: ModelRequest, parameter: str, data: torch.Tensor, element: int, began: bool) -> None:
    if parameter.endswith("attn_sink") and not began and not request.draft and request.rank == request.tp - 1:
        data[-element:] = 0


def _nameless(words: str) -> str:
    return "AssertionError (without a message)"


def _one_row_on(request: ModelRequest, one: FromFile) -> FromFile:
    if one.name.endswith("attn.wo_b.weight") and request.rank == 1:
        return msgspec.structs.replace(one, offset=one.offset + one.full[1] * ELEMENT[one.dtype])
    return one


rounded = ModelFault(hand=_rounded)
file_row = ModelFault(file=_one_row_on)
sink_zero = ModelFault(spoil=_sink_zero)
nameless = ModelFault(says=_nameless)
