"""Faults that depend on what is loaded, or on what was loaded before: values, order, repetition, neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.faults.seams import Call, Load, LoaderFault

if TYPE_CHECKING:
    import torch

    from conformance.stacks.protocols import ExpertsLayer


def _zero_becomes_one(load: Load) -> None:
    """As a numeric conversion of codes would do: only bytes of value 0 change, and none in the padding."""
    if load.parameter == "w2_weight" and load.size:
        logical = load.part.narrow(load.dim, 0, load.size)
        logical[logical == 0] = 1


def _nan_scale_dropped(load: Load) -> None:
    if load.parameter == "w2_weight_scale":
        load.part[load.part == 0xFF] = 0xFE


def _nan_tail(load: Load) -> None:
    load.tail().fill_(0xFF)


def _all_zero_skipped(call: Call, before: list[Call], source: torch.Tensor) -> bool:
    return not bool(source.any())


def _second_ignored(call: Call, before: list[Call], source: torch.Tensor) -> bool:
    return call in before


def _scales_before_weights_ignored(call: Call, before: list[Call], source: torch.Tensor) -> bool:
    return call.parameter.endswith("_scale") and not any(not c.parameter.endswith("_scale") for c in before)


def _descending_ignored(call: Call, before: list[Call], source: torch.Tensor) -> bool:
    last = next((c.expert for c in reversed(before) if c[:2] == call[:2]), 0)
    return call.expert < last


def _neighbour_destroyed(layer: ExpertsLayer, call: Call, before: list[Call]) -> None:
    """Loading W2's scales zeroes the same expert's W13."""
    if call.parameter == "w2_weight_scale":
        layer.write("w13_weight", call.expert, layer.read("w13_weight", call.expert).clone().zero_())


def _other_half_destroyed(layer: ExpertsLayer, call: Call, before: list[Call]) -> None:
    """Loading W1 zeroes W3's half: unseen while every W1 comes before its W3."""
    if (call.parameter, call.shard) == ("w13_weight", "w1"):
        data = layer.read("w13_weight", call.expert).clone()
        data[data.shape[0] // 2 :] = 0
        layer.write("w13_weight", call.expert, data)


zero_becomes_one = LoaderFault(after=_zero_becomes_one)
nan_scale_dropped = LoaderFault(after=_nan_scale_dropped)
nan_tail = LoaderFault(after=_nan_tail)
all_zero_skipped = LoaderFault(ignores=_all_zero_skipped)
second_ignored = LoaderFault(ignores=_second_ignored)
scales_first_ignored = LoaderFault(ignores=_scales_before_weights_ignored)
descending_ignored = LoaderFault(ignores=_descending_ignored)
neighbour_destroyed = LoaderFault(beside=_neighbour_destroyed)
other_half_destroyed = LoaderFault(beside=_other_half_destroyed)
