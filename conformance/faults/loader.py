"""Faults at the loader seam: each one a wrong way to cut a rank's slice."""

from __future__ import annotations

from conformance.faults.seams import Load, LoaderFault

_GARBAGE = 0x7F


def unit_blind(*parameters: str) -> LoaderFault:
    """Stride and size are the destination's own width, as if it were counted in the plan's unit."""

    def after(load: Load) -> None:
        if load.parameter in parameters:
            load.cut(load.width * load.request.rank, load.width)

    return LoaderFault(after=after)


def _elements_as_bytes(load: Load) -> None:
    if load.parameter == "w2_weight":
        elements = load.per_rank * load.unit
        load.cut(elements * load.request.rank, elements)


def _padded_size(load: Load) -> None:
    if load.parameter == "w2_weight":
        load.cut(load.start, load.width)


def _floor_division(load: Load) -> None:
    size = load.source.shape[load.dim] // load.request.tp
    load.cut(size * load.request.rank, size, rest=load.prefill)


def _stale_tail(load: Load) -> None:
    load.tail().fill_(load.prefill)


def _garbage_tail(load: Load) -> None:
    load.tail().fill_(_GARBAGE)


def _halves_together(load: Load) -> None:
    """Rows of W3 begin where W1's logical rows end, and all the padding comes behind them."""
    if load.shard == "w3":
        rows, cols = load.size, load.source.shape[1]
        load.whole[rows:] = 0
        load.whole[rows : 2 * rows, :cols] = load.source[load.start : load.start + rows]


def _pairs_as_rows(load: Load) -> None:
    """Rows of gate and up lie in turn, two a channel, and the slice begins where one a channel would put it."""
    if load.parameter.startswith("w13"):
        load.cut(load.start // 2, load.size)


def _dropped_rank(load: Load) -> None:
    if load.request.rank == load.request.tp - 1:
        load.part.zero_()


def off_by_groups(*parameters: str) -> LoaderFault:
    """Slices begin one scale group (32 elements) too late."""

    def after(load: Load) -> None:
        if load.parameter in parameters:
            load.cut(load.start + 32 // load.unit, load.size)

    return LoaderFault(after=after)


def _last_byte_lost(load: Load) -> None:
    if load.parameter == "w2_weight" and load.size:
        load.part[load.source.shape[0] - 1, load.size - 1] = load.prefill


def _one_expert_wrong(load: Load) -> None:
    if load.parameter == "w2_weight" and load.expert == load.request.experts - 1:
        load.cut(load.start + 1, load.size)


elements_as_bytes = LoaderFault(after=_elements_as_bytes)
padded_size = LoaderFault(after=_padded_size)
floor_division = LoaderFault(after=_floor_division)
stale_tail = LoaderFault(after=_stale_tail)
garbage_tail = LoaderFault(after=_garbage_tail)
pairs_as_rows = LoaderFault(after=_pairs_as_rows)
halves_together = LoaderFault(after=_halves_together)
dropped_rank = LoaderFault(after=_dropped_rank)
last_byte_lost = LoaderFault(after=_last_byte_lost)
one_expert_wrong = LoaderFault(after=_one_expert_wrong)
too_wide = LoaderFault(wider=96)
reversed_ranks = LoaderFault(rank=lambda request: request.tp - 1 - request.rank)
swapped = LoaderFault(target=lambda request, call: ({"w1": "w3", "w3": "w1"}.get(call.shard, call.shard), call.expert))
shifted_experts = LoaderFault(target=lambda request, call: (call.shard, (call.expert + 1) % request.experts))
