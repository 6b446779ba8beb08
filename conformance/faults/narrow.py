"""Faults that show in one place only: one rank, one expert, one tensor, one half, one edge of a slice."""

from __future__ import annotations

from conformance.faults.seams import Call, Load, LoaderFault
from conformance.stacks.protocols import ExpertsRequest


def _rank0_off(load: Load) -> None:
    if load.parameter == "w2_weight" and load.request.rank == 0:
        load.cut(load.start + 32 // load.unit, load.size)


def _middle_expert_off(load: Load) -> None:
    if load.parameter == "w13_weight" and load.expert == load.request.experts // 2:
        load.cut(load.start + 1, load.size)


def _w3_off(load: Load) -> None:
    if load.parameter == "w13_weight_scale" and load.shard == "w3":
        load.cut(load.start + 1, load.size)


def _columns_rolled(load: Load) -> None:
    if load.parameter == "w13_weight" and load.shard == "w1":
        cols = load.source.shape[1]
        load.part[:, :cols] = load.part[:, :cols].roll(1, dims=1)


def _rows_rolled(load: Load) -> None:
    if load.parameter == "w2_weight_scale":
        rows = load.source.shape[0]
        load.part[:rows] = load.part[:rows].roll(1, dims=0)


def _slice_end_lost(load: Load) -> None:
    if load.parameter == "w2_weight_scale" and load.size:
        load.part.narrow(load.dim, load.size - 1, 1).zero_()


def _inner_row_lost(load: Load) -> None:
    if load.parameter == "w13_weight" and load.shard == "w3" and load.size > 2:
        load.part[load.size // 2] = load.part[load.size // 2 - 1]


def _tail_of_last_expert(load: Load) -> None:
    last = load.expert == load.request.experts - 1 and load.request.rank == load.request.tp - 1
    if load.parameter == "w2_weight" and last:
        load.tail().fill_(0x11)


def _scales_swapped(request: ExpertsRequest, call: Call) -> tuple[str, int]:
    other = {"w1": "w3", "w3": "w1"}.get(call.shard, call.shard)
    return (other if call.parameter == "w13_weight_scale" else call.shard), call.expert


def _scales_shifted(request: ExpertsRequest, call: Call) -> tuple[str, int]:
    step = 1 if call.parameter == "w13_weight_scale" else 0
    return call.shard, (call.expert + step) % request.experts


rank0_off = LoaderFault(after=_rank0_off)
middle_expert_off = LoaderFault(after=_middle_expert_off)
w3_off = LoaderFault(after=_w3_off)
columns_rolled = LoaderFault(after=_columns_rolled)
rows_rolled = LoaderFault(after=_rows_rolled)
slice_end_lost = LoaderFault(after=_slice_end_lost)
inner_row_lost = LoaderFault(after=_inner_row_lost)
tail_of_last_expert = LoaderFault(after=_tail_of_last_expert)
scales_swapped = LoaderFault(target=_scales_swapped)
scales_shifted = LoaderFault(target=_scales_shifted)
