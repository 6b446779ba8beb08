"""Faults between loading and the kernel: at the conversion's input, at its output, in the choice of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from conformance import expected
from conformance.stacks.prepare_protocol import (
    Form,
    Preparation,
    Prepared,
    PreparedLayer,
    PrepareRequest,
)
from conformance.stacks.selection_protocol import Choice, Selection, SelectionRequest

if TYPE_CHECKING:
    import torch

_GARBAGE = 0x7F


class PrepareFault(NamedTuple):
    """Each hook may be None. `given` changes a copy of a loaded parameter (experts, rows, cols) before conversion and
    returns it; `made` changes what came out of it."""

    given: Callable[[PrepareRequest, str, torch.Tensor], torch.Tensor] | None = None
    made: Callable[[PrepareRequest, str, torch.Tensor, Prepared], Prepared] | None = None


class FaultyPreparation:
    def __init__(self, inner: Preparation, fault: PrepareFault):
        self._inner, self._fault = inner, fault

    def open(self, request: PrepareRequest) -> PreparedLayer:
        return _FaultyPrepared(self._inner.open(request), self._fault, request)


class _FaultyPrepared:
    def __init__(self, inner: PreparedLayer, fault: PrepareFault, request: PrepareRequest):
        self._inner, self._fault, self._request = inner, fault, request
        self.info = inner.info

    def convert(self, loaded: dict[str, torch.Tensor]) -> dict[str, Prepared]:
        given, made = self._fault.given, self._fault.made
        if given:
            loaded = {name: given(self._request, name, data.clone()) for name, data in loaded.items()}
        done = self._inner.convert(loaded)
        if made:
            done = {name: made(self._request, name, loaded[name], one) for name, one in done.items()}
        return done

    def close(self) -> None:
        self._inner.close()


class FaultySelection:
    def __init__(self, inner: Selection, fault: Callable[[Choice], Choice]):
        self._inner, self._fault = inner, fault

    def choices(self, request: SelectionRequest) -> list[Choice]:
        return [self._fault(choice) for choice in self._inner.choices(request)]


def _halves_together(request: PrepareRequest, name: str, data: torch.Tensor) -> torch.Tensor:
    """All padding behind up's half, none behind gate's."""
    if name.startswith("w13"):
        half, share = data.shape[1] // 2, expected.axes(request.geometry, request.tp)["routed"].per_rank
        gate, up = data[:, :share].clone(), data[:, half : half + share].clone()
        data.zero_()
        data[:, :share], data[:, share : 2 * share] = gate, up
    return data


def _swapped(*names: str) -> Callable[[PrepareRequest, str, torch.Tensor], torch.Tensor]:
    def swap(request: PrepareRequest, name: str, data: torch.Tensor) -> torch.Tensor:
        return data.roll(data.shape[1] // 2, 1) if name in names else data

    return swap


def _replaced(one: Prepared, data: torch.Tensor) -> Prepared:
    return Prepared(data.reshape(one.data.shape), one.form)


def _plain_scales(request: PrepareRequest, name: str, loaded: torch.Tensor, one: Prepared) -> Prepared:
    """Scales as loaded: halves swapped, not interleaved."""
    if not name.endswith("_scale"):
        return one
    return _replaced(one, loaded.roll(loaded.shape[1] // 2, 1) if name.startswith("w13") else loaded)


def _shuffled(request: PrepareRequest, name: str, loaded: torch.Tensor, one: Prepared) -> Prepared:
    """Rows of W13 alternate between up and gate, as TRT-LLM's kernels want them."""
    if name != "w13_weight":
        return one
    up, gate = one.data.view(loaded.shape).chunk(2, dim=1)
    return _replaced(one, up.new_empty(loaded.shape).copy_(_alternating(up, gate)))


def _alternating(up: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    both = up.new_empty((up.shape[0], 2 * up.shape[1], up.shape[2]))
    both[:, 0::2], both[:, 1::2] = up, gate
    return both


def _dirty_tail(request: PrepareRequest, name: str, loaded: torch.Tensor, one: Prepared) -> Prepared:
    """The last row of up's half, which is padding, was never cleared."""
    if name != "w13_weight":
        return one
    data = one.data.clone().view(loaded.shape)
    data[:, data.shape[1] // 2 - 1] = _GARBAGE
    return _replaced(one, data)


def _mixed_experts(request: PrepareRequest, name: str, loaded: torch.Tensor, one: Prepared) -> Prepared:
    """Every second scale tile of an expert is its neighbour's."""
    if not name.endswith("_scale") or len(one.data) < 2:
        return one
    tiles = one.data.clone().view(len(one.data), -1, 512)
    tiles[:, 1::2] = tiles[:, 1::2].roll(1, 0)
    return _replaced(one, tiles)


def _lost_tile(request: PrepareRequest, name: str, loaded: torch.Tensor, one: Prepared) -> Prepared:
    """The first scale tile of W2 is written twice, the last one never."""
    if name != "w2_weight_scale":
        return one
    tiles = one.data.clone().view(len(one.data), -1, 512)
    tiles[:, -1] = tiles[:, 0]
    return _replaced(one, tiles)


def _flat_scales(request: PrepareRequest, name: str, loaded: torch.Tensor, one: Prepared) -> Prepared:
    """Scales come out as the interleave made them: one row for all experts."""
    return Prepared(one.data, Form((one.data.numel(),), one.form.dtype)) if name.endswith("_scale") else one


def _nibbles(request: PrepareRequest, name: str, data: torch.Tensor) -> torch.Tensor:
    """The two codes of each byte in the other order."""
    return data if name.endswith("_scale") else data << 4 | data >> 4


def _rows_apart(request: PrepareRequest, name: str, data: torch.Tensor) -> torch.Tensor:
    """Rows r and r + 8 of each 16 take each other's place."""
    if name.endswith("_scale"):
        return data
    return data.unflatten(1, (-1, 2, 8)).flip(2).flatten(1, 3)


def _bits_left(request: PrepareRequest, name: str, loaded: torch.Tensor, one: Prepared) -> Prepared:
    """Weights as loaded, halves swapped: neither bytes nor bits are interleaved."""
    if name.endswith("_scale"):
        return one
    return _replaced(one, loaded.roll(loaded.shape[1] // 2, 1) if name.startswith("w13") else loaded)


def _halves_exchanged(request: PrepareRequest, name: str, loaded: torch.Tensor, one: Prepared) -> Prepared:
    """In each word, upper and lower half exchange places: as if codes were numbered from the other end."""
    return one if name.endswith("_scale") else _replaced(one, one.data.unflatten(1, (-1, 2, 2)).flip(2))


def _bf16_everywhere(choice: Choice) -> Choice:
    return msgspec.structs.replace(choice, scheme="bf16")


def _other_unasked(choice: Choice) -> Choice:
    return choice if choice.asked != "auto" else msgspec.structs.replace(choice, family="triton", backend="TRITON")


def _by_major(choice: Choice) -> Choice:
    """All from 10.0 on is taken for 10.0."""
    if choice.asked != "auto" or choice.capability[0] <= 10:
        return choice
    return msgspec.structs.replace(choice, family="flashinfer_trtllm", backend="TRTLLM")


halves_together = PrepareFault(given=_halves_together)
not_swapped = PrepareFault(given=_swapped("w13_weight", "w13_weight_scale"))
scales_not_swapped = PrepareFault(given=_swapped("w13_weight_scale"))
not_interleaved = PrepareFault(made=_plain_scales)
shuffled = PrepareFault(made=_shuffled)
dirty_tail = PrepareFault(made=_dirty_tail)
mixed_experts = PrepareFault(made=_mixed_experts)
lost_tile = PrepareFault(made=_lost_tile)
flat_scales = PrepareFault(made=_flat_scales)
nibbles = PrepareFault(given=_nibbles)
rows_apart = PrepareFault(given=_rows_apart)
bits_left = PrepareFault(made=_bits_left)
halves_exchanged = PrepareFault(made=_halves_exchanged)
bf16_everywhere = _bf16_everywhere
other_unasked = _other_unasked
by_major = _by_major
