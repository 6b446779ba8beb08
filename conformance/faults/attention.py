"""Faults of the attention layer: heads that leak, sinks, unseen bytes, steps, caches, tables, groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from conformance.faults.attention_seam import AttentionFault, Inserting
from conformance.stacks.attention_protocol import (
    AttendCall,
    AttentionCapabilities,
    CompressorRequest,
    OutputRequest,
    SelectCall,
    Sparse,
    StepCall,
)

if TYPE_CHECKING:
    import torch

    Attend = Callable[[AttendCall, torch.Tensor], None]
    Step = Callable[[StepCall, torch.Tensor], None]
    Project = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]

_NOPE, _ROPE = 448, 64


# ---- heads and sinks


def _last_real(call: AttendCall) -> int:
    finite = call.sinks.isfinite().nonzero()
    return int(finite[-1]) if len(finite) else 0


def _pad_stored(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """The last real head's place takes what the last pad head computed."""
    inner(call, out)
    out[:, _last_real(call)] = out[:, -1]


def _pad_mixed(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """Pad heads' weights count in every head's denominator, a little."""
    inner(call, out)
    out.add_(out[:, -1:].clone() * 2.0**-5)


def _heads_swapped(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    inner(call._replace(q=call.q[:, [1, 0, *range(2, call.q.shape[1])]].contiguous()), out)


def _sink_dropped(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    import torch

    inner(call._replace(sinks=torch.full_like(call.sinks, -torch.inf)), out)


def _sink_only_compressed(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    (_sink_dropped if call.compressed is None else _plain)(inner, call, out)


def _plain(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    inner(call, out)


def _sink_zero(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    import torch

    inner(call._replace(sinks=torch.where(call.sinks.isneginf(), 0.0, call.sinks)), out)


def _sink_base_two(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """The sink is taken for a power of two, scores for powers of e."""
    inner(call._replace(sinks=call.sinks * 0.6931), out)


def _empty_nan(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """0 / 0 where a row sees nothing and has no sink."""
    import torch

    inner(call, out)
    seen = call.window.lengths + (call.compressed.lengths if call.compressed else 0)
    out[(seen == 0)[:, None] & call.sinks.isneginf()] = torch.nan


def _sinkless_nan(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    import torch

    inner(call, out)
    out[:, call.sinks.isneginf()] = torch.nan


def _more_heads(count: int) -> int:
    return 2 * count


# ---- what is seen


def _scale_off(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    inner(call._replace(scale=call.scale * 1.02), out)


def _lengths_ignored(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """-1 is read as slot 0, and every slot counts."""
    both = [_every(part) if part is not None else None for part in (call.window, call.compressed)]
    assert both[0] is not None
    inner(call._replace(window=both[0], compressed=both[1]), out)


def _every(part: Sparse) -> Sparse:
    import torch

    return part._replace(slots=part.slots.clamp(min=0), lengths=torch.full_like(part.lengths, part.slots.shape[1]))


def _masked_by_zero(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """What is not seen has weight zero, and zero times NaN is NaN."""
    import torch

    inner(call, out)
    if (call.window.pages.data[:, :_NOPE] == 0xFF).all(1).any():
        out.fill_(torch.nan)


def _last_seen_lost(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """The newest token of the window is not seen, where there is another."""
    lengths = call.window.lengths
    inner(call._replace(window=call.window._replace(lengths=(lengths - 1).where(lengths > 1, lengths))), out)


def _entries_lost(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    inner(call._replace(compressed=None), out)


def _low_codes(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """E4M3's codes 0..7 are read as 2^-7 (1 + m / 8), as near as other codes come."""
    inner(call._replace(window=_raised(call.window)), out)


def _raised(part: Sparse) -> Sparse:
    n = part.pages.tokens
    data = part.pages.data.clone()
    rows = data[:, : n * 576].unflatten(1, (n, 576))
    codes = rows[..., :_NOPE]
    low = (codes & 0x7F) < 8
    rows[..., :_NOPE] = (4 + (codes & 0x7F) // 2 + (codes & 0x80)).where(low, codes)
    return part._replace(pages=part.pages._replace(data=data))


# ---- memory


def _behind(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The bytes behind a tensor in its own memory."""
    import torch

    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return whole[end : end + count]


def _tile_stored(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    inner(call, out)
    _behind(out, 64).zero_()


def _row_unwritten(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    done = out.clone()
    inner(call, done)
    out[:-1] = done[:-1]


def _input_scaled(inner: Attend, call: AttendCall, out: torch.Tensor) -> None:
    """Queries are scaled in place."""
    inner(call, out)
    call.q.mul_(call.scale)


# ---- steps


def _window(size: int) -> AttentionFault:
    def step(inner: Step, call: StepCall, out: torch.Tensor) -> None:
        inner(call._replace(window=size), out)

    return AttentionFault(step=step)


def _tables_rolled(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    """Requests read each other's windows."""
    inner(call._replace(window_table=call.window_table.roll(1, 0)), out)


def _entry_tables_rolled(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    table = call.compressed_table
    inner(call._replace(compressed_table=table.roll(1, 0) if table is not None else None), out)


def _first_page_only(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    inner(call._replace(window_table=call.window_table[:, :1].expand_as(call.window_table).contiguous()), out)


def _entry_late(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    """An entry is seen one token late: where there is compression every query is taken for the one before."""
    back, complete = call.positions - 1, (call.positions + 1) % max(call.ratio, 1) == 0
    inner(call._replace(positions=back.where(complete & (call.ratio > 0), call.positions)), out)


def _none_is_zero(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    """A selection's -1 is read as entry 0."""
    chosen = call.selected
    inner(call._replace(selected=chosen.clamp(min=0) if chosen is not None else None), out)


# ---- caches and tables


def _slot_clamped(inner: Callable[..., None], given: Inserting) -> None:
    """-1 is taken for the last slot there is."""
    last = given.pages.data.shape[0] * given.pages.tokens - 1
    inner(*given._replace(slots=given.slots.where(given.slots >= 0, last)))


def _stored_anew(
    inner: Callable[..., None], given: Inserting, exponent: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """As inserted, but for blocks' powers of two."""
    import torch

    inner(*given)
    n, data, kept = given.pages.tokens, given.pages.data, given.slots >= 0
    page, row = given.slots[kept] // n, given.slots[kept] % n
    blocks = given.kv[kept, :_NOPE].float().unflatten(1, (-1, _ROPE))
    power = exponent(blocks.abs().amax(2))
    codes = (blocks * torch.exp2(-power)[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    data[:, : n * 576].unflatten(1, (n, 576))[page, row, :_NOPE] = codes.flatten(1).view(torch.uint8)
    data[:, n * 576 : n * 584].unflatten(1, (n, 8))[page, row, :7] = (power + 127).to(torch.uint8)


def _scale_nearest(inner: Callable[..., None], given: Inserting) -> None:
    _stored_anew(inner, given, lambda amax: (amax.clamp(min=1e-4) / 448).log2().round())


def _scale_floor(inner: Callable[..., None], given: Inserting) -> None:
    _stored_anew(inner, given, lambda amax: (amax / 448).clamp(min=1e-4).log2().ceil())


def _in_first_half(x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first 64 channels lie where those lie that are rotated."""
    return x.roll(_ROPE, -1), positions


def _rolled(inner: Callable[..., None], given: Inserting) -> None:
    inner(*given._replace(kv=given.kv.roll(_ROPE, -1)))


def _backwards(table: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat((table[:, :32], -table[:, 32:]), dim=1)


def _bf16(table: torch.Tensor) -> torch.Tensor:
    return table.bfloat16().float()


def _halves(table: torch.Tensor) -> torch.Tensor:
    """Frequencies in another order, as where channels i and i + 32 make a pair."""
    return table.unflatten(1, (2, 2, 16)).transpose(2, 3).flatten(1)


def _yarn_everywhere() -> Callable[[int, torch.Tensor], torch.Tensor]:
    def made(ratio: int, table: torch.Tensor) -> torch.Tensor:
        """Slow pairs of the layers with compression 0 are slowed down too, as YaRN's factor of 16 does it."""
        import torch

        if ratio:
            return table
        angle = torch.atan2(table[:, 63:], table[:, 31:32]) / 16
        return torch.cat((table[:, :31], angle.cos(), table[:, 32:63], angle.sin()), dim=1)

    return made


def _made_bf16(ratio: int, table: torch.Tensor) -> torch.Tensor:
    return _bf16(table)


# ---- compression and selection


def _no_bias(request: CompressorRequest) -> CompressorRequest:
    return request._replace(bias=request.bias * 0)


def _no_norm(request: CompressorRequest) -> CompressorRequest:
    return request._replace(norm=request.norm * 0 + 1)


def _swapped(x: torch.Tensor) -> torch.Tensor:
    return x.roll(x.shape[1] // 2, 1) if x.shape[1] > 512 else x


def _highest_ties(inner: Callable[[SelectCall], torch.Tensor], call: SelectCall) -> torch.Tensor:
    """Of equal scores those with the highest numbers."""
    import torch

    keys = call.keys.float()[call.requests.long()]
    score = ((call.q.float() @ keys.mT).relu() * call.weights[..., None]).sum(1)
    number = torch.arange(score.shape[1], device=score.device)
    score = (score + 1e-5 * number).masked_fill(number >= (call.positions[:, None] + 1) // 4, -torch.inf)
    best = score.topk(call.k)
    return best.indices.where(best.values > -torch.inf, -1).int()


def _unready(inner: Callable[[SelectCall], torch.Tensor], call: SelectCall) -> torch.Tensor:
    """An entry may be selected one token early."""
    return inner(call._replace(positions=(call.positions + 1).clamp(max=4 * call.keys.shape[1] - 1)))


def _one_fewer(inner: Callable[[SelectCall], torch.Tensor], call: SelectCall) -> torch.Tensor:
    found = inner(call)
    found[:, call.k - 1 :] = -1
    return found


def _others_keys(inner: Callable[[SelectCall], torch.Tensor], call: SelectCall) -> torch.Tensor:
    return inner(call._replace(keys=call.keys.roll(1, 0)))


# ---- output


def _transposed(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """(T, G, D) is read as (G, T, D)."""
    moved = o.clone()
    own = o[:, : r.heads].reshape(r.groups, len(o), -1).transpose(0, 1)
    moved[:, : r.heads] = own.reshape(len(o), r.heads, -1)
    inner(moved, at, out)


def _group_offset(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """The second group of a rank reads the first one's heads."""
    moved, per = o.clone(), r.heads // r.groups
    moved[:, per : 2 * per] = o[:, :per]
    inner(moved, at, out)


def _not_back(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    inner(o, at * 0, out)


def _pads_first(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """The last heads are taken, not the first."""
    inner(o.roll(r.heads, 1), at, out)


def _pads_added(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """Pad heads are not cut off, and a weight of zero times NaN is NaN."""
    inner(o, at, out)
    out.add_(o[:, r.heads :].float().sum((1, 2))[:, None].to(out.dtype) * 0)


def _virtual_added(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """The virtual groups' weights are not quite zero."""
    import torch

    inner(o, at, out)
    per = r.heads // r.groups
    zero = [not bool((part & 0x7F).any()) for part in r.wo_a.chunk(r.groups)]
    for group in torch.tensor(zero).nonzero().flatten().tolist():
        out.add_((o[:, group * per : (group + 1) * per].float().mean((1, 2)) * 2.0**-4)[:, None].to(out.dtype))


def _once_more(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """Every rank adds a little too much."""
    inner(o, at, out)
    out.mul_(1.25)


def _other_recipe(can: AttentionCapabilities) -> AttentionCapabilities:
    other = "packed ue8m0" if can.scales == "float32 128x128" else "float32 128x128"
    return msgspec.structs.replace(can, scales=other)


def _scales_nan(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """Packed scales read as FP32."""
    import torch

    inner(o, at, out)
    out.fill_(torch.nan)


pad_stored = AttentionFault(attend=_pad_stored)
pad_mixed = AttentionFault(attend=_pad_mixed)
heads_swapped = AttentionFault(attend=_heads_swapped)
sink_dropped = AttentionFault(attend=_sink_dropped)
sink_only_compressed = AttentionFault(attend=_sink_only_compressed)
sink_zero = AttentionFault(attend=_sink_zero)
sink_base_two = AttentionFault(attend=_sink_base_two)
empty_nan = AttentionFault(attend=_empty_nan)
sinkless_nan = AttentionFault(attend=_sinkless_nan)
more_heads = AttentionFault(padded=_more_heads)
scale_off = AttentionFault(attend=_scale_off)
lengths_ignored = AttentionFault(attend=_lengths_ignored)
masked_by_zero = AttentionFault(attend=_masked_by_zero)
last_seen_lost = AttentionFault(attend=_last_seen_lost)
entries_lost = AttentionFault(attend=_entries_lost)
low_codes = AttentionFault(attend=_low_codes)
tile_stored = AttentionFault(attend=_tile_stored)
row_unwritten = AttentionFault(attend=_row_unwritten)
input_scaled = AttentionFault(attend=_input_scaled)
window_short, window_long = _window(127), _window(129)
crosstalk = AttentionFault(step=_tables_rolled)
entry_crosstalk = AttentionFault(step=_entry_tables_rolled)
first_page_only = AttentionFault(step=_first_page_only)
entry_late = AttentionFault(step=_entry_late)
none_is_zero = AttentionFault(step=_none_is_zero)
slot_clamped = AttentionFault(insert=_slot_clamped)
scale_nearest = AttentionFault(insert=_scale_nearest)
scale_floor = AttentionFault(insert=_scale_floor)
first_half = AttentionFault(queries=_in_first_half, insert=_rolled)
backwards = AttentionFault(table=_backwards)
half_pairs = AttentionFault(table=_halves)
bf16_table = AttentionFault(table=_bf16, made=_made_bf16)
yarn_everywhere = AttentionFault(made=_yarn_everywhere())
no_bias = AttentionFault(entries=_no_bias)
no_norm = AttentionFault(entries=_no_norm)
ca_cb_swapped = AttentionFault(halves=_swapped)
chunks_forgotten = AttentionFault(forgets=True)
highest_ties = AttentionFault(select=_highest_ties)
unready = AttentionFault(select=_unready)
one_fewer = AttentionFault(select=_one_fewer)
others_keys = AttentionFault(select=_others_keys)
transposed = AttentionFault(output=_transposed)
group_offset = AttentionFault(output=_group_offset)
not_back = AttentionFault(output=_not_back)
pads_first = AttentionFault(output=_pads_first)
pads_added = AttentionFault(output=_pads_added)
virtual_added = AttentionFault(output=_virtual_added)
once_more = AttentionFault(output=_once_more)
other_recipe = AttentionFault(says=_other_recipe)
scales_nan = AttentionFault(output=_scales_nan)
