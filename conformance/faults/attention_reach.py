"""Faults of the attention layer that only some calls show: long ones, those of a slot used before, of other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from conformance.faults.attention_seam import AttentionFault, Compressing, Inserting
from conformance.stacks.attention_protocol import (
    AttendCall,
    Compressor,
    CompressorRequest,
    OutputRequest,
    SelectCall,
    Sparse,
    StepCall,
)

if TYPE_CHECKING:
    import torch

    from conformance.faults.attention import Attend, Project, Step

    Select = Callable[[SelectCall], torch.Tensor]
    Numbers = list[torch.Tensor]

#: Where exponentials end in FP32: e^88.7 is Inf, e^-103.9 is 0.
_OVERFLOW, _UNDERFLOW = 88.7, -103.9
_TILE = 256


# ---- compressor


def _unclean(request: CompressorRequest) -> Compressor:
    """A request that begins goes on with what the slot's last one left."""
    from conformance.stacks.reference_compressor import ReferenceCompressor

    class Unclean(ReferenceCompressor):
        def _state(self, request: int, position: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            return super()._state(request, position if request not in self._kept else -1)

    return Unclean(request)


def _ranked(requests: torch.Tensor) -> torch.Tensor:
    """The place of each token's request among those of the call."""
    return requests.unique_consecutive(return_inverse=True)[1].to(requests.dtype)


def _by_row(request: CompressorRequest, given: Compressing) -> Compressing:
    """State belongs to the request's place in the call."""
    return given._replace(requests=_ranked(given.requests))


def _last_alone(request: CompressorRequest, given: Compressing) -> Compressing:
    """Of the entries that a request completes in a call the last one is stored."""
    slots = given.slots.clone()
    for one in given.requests.unique():
        complete = ((given.requests == one) & (slots >= 0)).nonzero()[:, 0]
        slots[complete[:-1]] = -1
    return given._replace(slots=slots)


def _plain_exponentials(request: CompressorRequest, given: Compressing) -> Compressing:
    """Softmax without its maximum: Inf / Inf above 88, 0 / 0 where all are far below."""
    import torch

    gate = given.gate + request.bias[given.positions % request.ratio]
    high = given.gate.masked_fill(gate > _OVERFLOW, torch.inf)
    return given._replace(gate=high.masked_fill(gate < _UNDERFLOW, -torch.inf))


def _no_eps(request: CompressorRequest) -> CompressorRequest:
    return request._replace(eps=0.0)


def _near_positions(request: CompressorRequest) -> CompressorRequest:
    """Entries are rotated as if positions began anew every 512."""
    import torch

    near = torch.arange(len(request.table), device=request.table.device) % 512
    return request._replace(table=request.table[near])


# ---- attend


def _lengths_unread(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """Slots behind a row's length count as well."""
    import torch

    def every(part: Sparse) -> Sparse:
        return part._replace(lengths=torch.full_like(part.lengths, part.slots.shape[1]))

    inner(call._replace(window=every(call.window), compressed=call.compressed and every(call.compressed)), out)


def _none_is_slot_zero(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """-1 in front of a row is read as slot 0."""

    def clamped(part: Sparse) -> Sparse:
        return part._replace(slots=part.slots.clamp(min=0))

    inner(call._replace(window=clamped(call.window), compressed=call.compressed and clamped(call.compressed)), out)


def _scores(call: AttendCall) -> torch.Tensor:
    """(T, P, K) FP64 of all keys, -inf where none is seen."""
    import torch

    from references import attention_cache

    found = []
    for part in filter(None, (call.window, call.compressed)):
        place = torch.arange(part.slots.shape[1], device=part.slots.device)
        slots = part.slots.long().masked_fill(place >= part.lengths[:, None], -1)
        fp8 = part.pages.data.shape[1] != attention_cache.page_bytes(part.pages.tokens, False)
        values = attention_cache.read(part.pages.data, slots, part.pages.tokens, fp8)
        found.append((call.scale * call.q.double() @ values.mT).masked_fill((slots < 0)[:, None], -torch.inf))
    return torch.cat(found, 2)


def _overflowing(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """Exponentials without their maximum."""
    import torch

    inner(call, out)
    if len(call.q):
        out[_scores(call).amax(2) > _OVERFLOW] = torch.nan


def _first_maximum(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """The maximum of the first 64 keys stands for all."""
    import torch

    inner(call, out)
    if len(call.q):
        scores = _scores(call)
        out[scores.amax(2) - scores[..., :64].amax(2) > _OVERFLOW] = torch.nan


def _rows_of_a_tile(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """Queries from the 129th on are answered with nothing."""
    inner(call, out)
    out[128:] = 0


def _alone_cut_short(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """A single query is split, and the last split left out."""
    kept = call.compressed
    if len(call.q) == 1 and kept is not None:
        call = call._replace(compressed=kept._replace(lengths=kept.lengths.clamp(max=_TILE)))
    inner(call, out)


def _none_is_nan(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """A row that counts nothing but -1 is 0 / 0."""
    import torch

    inner(call, out)
    caches = [part for part in (call.window, call.compressed) if part is not None]
    counted = sum(part.lengths for part in caches)
    nobody = torch.cat([part.slots for part in caches], 1).lt(0).all(1)
    out[nobody & (counted > 0)] = torch.nan


def _read_slots_wrap(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """Slots from 2^15 on are taken for those 2^15 before."""

    def wrapped(part: Sparse) -> Sparse:
        return part._replace(slots=part.slots.where(part.slots < 1 << 15, part.slots - (1 << 15)))

    inner(call._replace(window=wrapped(call.window), compressed=call.compressed and wrapped(call.compressed)), out)


def _far_keys_dropped(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """Only the first 192 compressed entries: 320 keys in all."""
    kept = call.compressed
    inner(call._replace(compressed=kept and kept._replace(lengths=kept.lengths.clamp(max=320 - 128))), out)


def _sink_each_split(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """A row of more than 256 keys is split, and each split has the sink."""
    import torch

    inner(call, out)
    keys = call.window.lengths + (call.compressed.lengths if call.compressed else 0)
    splits = -(-keys // _TILE)
    for count in splits[splits > 1].unique().tolist():
        again = torch.empty_like(out)
        inner(call._replace(sinks=call.sinks + torch.tensor(float(count)).log().item()), again)
        out[splits == count] = again[splits == count]


def _nothing_fills_a_tile(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """A call of no tokens writes a tile all the same."""
    from conformance.faults.attention import _behind

    inner(call, out)
    if not len(call.q):
        _behind(out, 64).zero_()


# ---- steps


def _wrapped(table: torch.Tensor) -> torch.Tensor:
    """Columns of a block table from the 16th on are looked up from its first one on."""
    import torch

    return table[:, torch.arange(table.shape[1], device=table.device) % 16].contiguous()


def _columns_wrap(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    inner(call._replace(window_table=_wrapped(call.window_table)), out)


def _entry_columns_wrap(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    table = call.compressed_table
    inner(call._replace(compressed_table=None if table is None else _wrapped(table)), out)


def _found_slots_wrap(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    """Slots that a block table leads to are kept in 15 bits."""
    table, pages = call.compressed_table, call.compressed_pages
    wrapped = None if table is None or pages is None else table % ((1 << 15) // pages.tokens)
    window = call.window_table % ((1 << 15) // call.window_pages.tokens)
    inner(call._replace(window_table=window, compressed_table=wrapped), out)


def _by_rank(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    """A token's request is taken for the place of it among those of the call."""
    inner(call._replace(requests=_ranked(call.requests)), out)


def _eight_entries(call: StepCall, numbers: Numbers) -> Numbers:
    """Of C128's entries the first 8."""
    return numbers if call.ratio != 128 else [numbers[0], numbers[1][:, :8]]


def _few_selected(call: StepCall, numbers: Numbers) -> Numbers:
    return numbers if call.selected is None else [numbers[0], numbers[1][:, :_TILE]]


def _end_of_tile(call: StepCall, numbers: Numbers) -> Numbers:
    """Which of C128's entries are complete is asked of a tile of 32 tokens, at its last one."""
    import torch

    from references import attention_seen

    if call.ratio != 128:
        return numbers
    place = torch.arange(len(call.positions), device=call.positions.device)
    last = (place // 32 * 32 + 31).clamp(max=len(place) - 1)
    same = call.requests[last] == call.requests
    at = torch.where(same, call.positions[last], call.positions)
    return [numbers[0], attention_seen.entries(at, call.ratio, numbers[1].shape[1])]


# ---- selection


def _weights_bf16(inner: Select, call: SelectCall) -> torch.Tensor:
    return inner(call._replace(weights=call.weights.bfloat16().float()))


def _scored(products: bool, scores: bool) -> Callable[[Select, SelectCall], torch.Tensor]:
    def select(inner: Select, call: SelectCall) -> torch.Tensor:
        """Products of queries and keys, or scores, are rounded to BF16."""
        import torch

        from references import attention_index

        each = (call.q.double() @ call.keys.double()[call.requests.long()].mT).relu()
        each = each.bfloat16().double() if products else each
        found = (call.weights.double()[..., None] * each).sum(1)
        found = found.bfloat16().double() if scores else found
        number = torch.arange(found.shape[1], device=found.device)
        found = found.masked_fill(number >= (call.positions[:, None] + 1) // 4, -torch.inf)
        return attention_index.lowest(found, call.k).int()

    return select


def _near_entries(inner: Select, call: SelectCall) -> torch.Tensor:
    """Entries from 512 on are never ranked."""
    return inner(call._replace(keys=call.keys[:, :512].contiguous(), positions=call.positions.clamp(max=4 * 512 - 1)))


def _others_positions(inner: Select, call: SelectCall) -> torch.Tensor:
    """Each token has the position of its twin in another request."""
    return inner(call._replace(positions=call.positions.roll(len(call.positions) // 2)))


def _cut_off(inner: Select, call: SelectCall) -> torch.Tensor:
    found = inner(call)
    found[:, _TILE:] = -1
    return found


# ---- caches, output, tables


def _slots_wrap(inner: Callable[..., None], given: Inserting) -> None:
    """Slots from 2^15 on are taken for those 2^15 before."""
    inner(*given._replace(slots=given.slots.where(given.slots < 1 << 15, given.slots - (1 << 15))))


def _later_dropped(inner: Callable[..., None], given: Inserting) -> None:
    """Tokens from the 129th on are not stored."""
    slots = given.slots.clone()
    slots[128:] = -1
    inner(*given._replace(slots=slots))


def _queries_of_a_tile(q: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 65th query is rotated as the first one is, and so on."""
    import torch

    return q, positions[torch.arange(len(positions), device=positions.device) % 64]


def _alone_not_back(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    inner(o, at * 0 if len(at) == 1 else at, out)


def _two_alike(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """Two tokens are taken for the first one twice."""
    import torch

    both = torch.zeros_like(at) if len(at) == 2 else torch.arange(len(at), device=at.device)
    inner(o[both].contiguous(), at[both], out)


def _scale_of_head(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """A head is rounded to E4M3 with one power of two for all its channels."""
    import torch

    power = (o.double().abs().amax(2, keepdim=True) / 448).clamp(min=2.0**-100).log2().ceil()
    codes = (o.double() * torch.exp2(-power)).float().to(torch.float8_e4m3fn)
    inner((codes.double() * torch.exp2(power)).to(o.dtype), at, out)


def _first_positions(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """The 65th token is rotated back as the first one is, and so on."""
    import torch

    inner(o, at[torch.arange(len(at), device=at.device) % 64], out)


def _angles_begin_anew(ratio: int, table: torch.Tensor) -> torch.Tensor:
    """Every 8,192 positions."""
    import torch

    return table[torch.arange(len(table), device=table.device) % 8192]


state_kept = AttentionFault(compressor=_unclean)
state_by_row = AttentionFault(compress=_by_row)
last_entry_alone = AttentionFault(compress=_last_alone)
gates_overflow = AttentionFault(compress=_plain_exponentials)
no_eps = AttentionFault(entries=_no_eps)
near_positions = AttentionFault(entries=_near_positions)
lengths_unread = AttentionFault(attend=_lengths_unread)
none_is_slot_zero = AttentionFault(attend=_none_is_slot_zero)
overflowing = AttentionFault(attend=_overflowing)
first_maximum = AttentionFault(attend=_first_maximum)
rows_of_a_tile = AttentionFault(attend=_rows_of_a_tile)
alone_cut_short = AttentionFault(attend=_alone_cut_short)
none_is_nan = AttentionFault(attend=_none_is_nan)
read_slots_wrap = AttentionFault(attend=_read_slots_wrap)
far_keys_dropped = AttentionFault(attend=_far_keys_dropped)
sink_each_split = AttentionFault(attend=_sink_each_split)
nothing_fills_a_tile = AttentionFault(attend=_nothing_fills_a_tile)
columns_wrap = AttentionFault(step=_columns_wrap)
entry_columns_wrap = AttentionFault(step=_entry_columns_wrap)
found_slots_wrap = AttentionFault(step=_found_slots_wrap)
by_rank = AttentionFault(step=_by_rank)
eight_entries = AttentionFault(sees=_eight_entries)
few_selected = AttentionFault(sees=_few_selected)
end_of_tile = AttentionFault(sees=_end_of_tile)
weights_bf16 = AttentionFault(select=_weights_bf16)
products_bf16 = AttentionFault(select=_scored(True, False))
scores_bf16 = AttentionFault(select=_scored(False, True))
near_entries = AttentionFault(select=_near_entries)
others_positions = AttentionFault(select=_others_positions)
cut_off = AttentionFault(select=_cut_off)
slots_wrap = AttentionFault(insert=_slots_wrap)
later_dropped = AttentionFault(insert=_later_dropped)
queries_of_a_tile = AttentionFault(queries=_queries_of_a_tile)
alone_not_back = AttentionFault(output=_alone_not_back)
two_alike = AttentionFault(output=_two_alike)
scale_of_head = AttentionFault(output=_scale_of_head)
first_positions = AttentionFault(output=_first_positions)
angles_begin_anew = AttentionFault(made=_angles_begin_anew)
