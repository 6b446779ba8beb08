"""Faults of the attention layer that the NVFP4 contract names (S11, S12): output, tables, entries, selection, cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from conformance.faults.attention_seam import AttentionFault, Inserting
from conformance.stacks.attention_protocol import (
    AttendCall,
    Compressor,
    CompressorRequest,
    OutputRequest,
    SelectCall,
    StepCall,
)

if TYPE_CHECKING:
    import torch

    from conformance.faults.attention import Project, Step

    Numbers = list[torch.Tensor]

_ROPE, _WINDOW = 64, 128
#: A token's data, its scales: bytes.
_DATA, _SCALES = 576, 8


# ---- output


def _groups_zero(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """Every group but a rank's first reads zeros."""
    first = o.clone()
    first[:, r.heads // r.groups : r.heads] = 0
    inner(first, at, out)


def _not_permuted_back(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """What wo_a makes, (G, T, R), is read as (T, G, R)."""
    from references.attention_output import fp8_blocks, grouped
    from references.attention_rope import rotated

    wo_a, wo_b = fp8_blocks(r.wo_a, r.wo_a_scale), fp8_blocks(r.wo_b, r.wo_b_scale)
    back = grouped(rotated(o[:, : r.heads], at, r.table, inverse=True), r.groups)
    z = back @ wo_a.unflatten(0, (r.groups, -1)).transpose(1, 2)
    out.copy_(z.reshape(len(o), -1) @ wo_b.T)


def _first_half_back(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """The first channels of a head are rotated back, the last are left."""
    from references.attention_rope import rotated

    turned = rotated(o.roll(-_ROPE, 2), at, r.table, inverse=True).roll(_ROPE, 2)
    inner(rotated(turned, at, r.table).to(o.dtype), at, out)


def _key_positions(inner: Project, r: OutputRequest, o: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    """Rotated back at the position of the first key in the window, not at the query's."""
    inner(o, (at - (_WINDOW - 1)).clamp(min=0), out)


# ---- tables


def _sin_beyond(table: torch.Tensor) -> torch.Tensor:
    """Sines are read from the middle of a table that is wider than its cosines and sines: from what is padding."""
    import torch

    return torch.cat((table[:, :32], torch.zeros_like(table[:, 32:])), dim=1)


def _main_theta(ratio: int, table: torch.Tensor) -> torch.Tensor:
    """Layers with compression have the theta of those without: 10000, and no YaRN."""
    from references import attention_rope

    plain = attention_rope.table(attention_rope.frequencies(10000.0), len(table))
    return plain.to(table) if ratio else table


# ---- compressed entries


def _at_window_end(request: CompressorRequest) -> CompressorRequest:
    """An entry is rotated at its last token's position, not at its first one's."""
    return request._replace(table=request.table.roll(1 - request.ratio, 0))


def _across_channels(request: CompressorRequest) -> Compressor:
    """Softmax over the channels of a token, not over the tokens of a channel."""
    from conformance.stacks.reference_compressor import ReferenceCompressor

    class Across(ReferenceCompressor):
        def _entry(self, kept: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
            return super()._entry([(value, gate.softmax(0).log()) for value, gate in kept])

    return Across(request)


def _early(call: StepCall, numbers: Numbers) -> Numbers:
    """Of C128, an entry is seen one token before it is complete."""
    from references import attention_seen

    if call.ratio != 128:
        return numbers
    return [numbers[0], attention_seen.entries(call.positions + 1, call.ratio, numbers[1].shape[1])]


def _selection_ignored(call: StepCall, numbers: Numbers) -> Numbers:
    """All complete entries are seen, as many as the cache holds, not those that are selected."""
    from references import attention_seen

    if call.selected is None:
        return numbers
    return [numbers[0], attention_seen.entries(call.positions, call.ratio, int(call.lengths.max()) // call.ratio)]


def _pages_undivided(inner: Step, call: StepCall, out: torch.Tensor) -> None:
    """A page of entries is taken for as many entries as it stands for tokens."""
    import torch

    table = call.compressed_table
    if table is not None:
        table = table[:, torch.arange(table.shape[1], device=table.device) // call.ratio].contiguous()
    inner(call._replace(compressed_table=table), out)


def _no_relu(inner: Callable[[SelectCall], torch.Tensor], call: SelectCall) -> torch.Tensor:
    """Heads that point away from an entry count against it."""
    import torch

    from references import attention_index

    each = call.q.double() @ call.keys.double()[call.requests.long()].mT
    found = (call.weights.double()[..., None] * each).sum(1)
    number = torch.arange(found.shape[1], device=found.device)
    found = found.masked_fill(number >= (call.positions[:, None] + 1) // 4, -torch.inf)
    return attention_index.lowest(found, call.k).int()


def _nan_garbage(inner: Callable[[SelectCall], torch.Tensor], call: SelectCall) -> torch.Tensor:
    """Where scores are NaN, what lay in the buffer is answered."""
    found = inner(call)
    found[call.weights.isnan().any(1)] = 0x7FC00000
    return found


# ---- attend and insert


def _scale_twice(inner: Callable[[AttendCall, torch.Tensor], None], call: AttendCall, out: torch.Tensor) -> None:
    inner(call._replace(scale=call.scale**2), out)


def _kv_nvfp4(inner: Callable[..., None], given: Inserting) -> None:
    """Keys go through NVFP4 before they are stored."""
    from references import nvfp4

    kv = given.kv.float()
    inner(*given._replace(kv=nvfp4.rounded(kv, nvfp4.own_global_scale(kv)).to(given.kv.dtype)))


def _scales_interleaved(inner: Callable[..., None], given: Inserting) -> None:
    """A token's scales follow its data at once, not the data of the whole page."""
    n, data, kept = given.pages.tokens, given.pages.data, given.slots[given.slots >= 0]
    apart = data.clone()
    inner(*given._replace(pages=given.pages._replace(data=apart)))
    page, row = kept // n, kept % n
    together = data[:, : n * (_DATA + _SCALES)].unflatten(1, (n, _DATA + _SCALES))
    together[page, row, :_DATA] = apart[:, : n * _DATA].unflatten(1, (n, _DATA))[page, row]
    scales = apart[:, n * _DATA : n * (_DATA + _SCALES)].unflatten(1, (n, _SCALES))
    together[page, row, _DATA:] = scales[page, row]


groups_zero = AttentionFault(output=_groups_zero)
not_permuted_back = AttentionFault(output=_not_permuted_back)
first_half_back = AttentionFault(output=_first_half_back)
key_positions = AttentionFault(output=_key_positions)
sin_beyond = AttentionFault(table=_sin_beyond)
main_theta = AttentionFault(made=_main_theta)
at_window_end = AttentionFault(entries=_at_window_end)
across_channels = AttentionFault(compressor=_across_channels)
early = AttentionFault(sees=_early)
selection_ignored = AttentionFault(sees=_selection_ignored)
pages_undivided = AttentionFault(step=_pages_undivided)
no_relu = AttentionFault(select=_no_relu)
nan_garbage = AttentionFault(select=_nan_garbage)
scale_twice = AttentionFault(attend=_scale_twice)
kv_nvfp4 = AttentionFault(insert=_kv_nvfp4)
scales_interleaved = AttentionFault(insert=_scales_interleaved)
