"""Faults that only certain calls of the attention layer show, with the claims that must fail when one is planted."""

from __future__ import annotations

from typing import NamedTuple

from conformance.faults import attention_contract as contract
from conformance.faults import attention_reach as reach
from conformance.faults import attention_small as small
from conformance.faults.attention_seam import AttentionFault


class Row(NamedTuple):
    """`claims`: without `attention.`, separated by spaces."""

    id: str
    what: str
    claims: str
    fault: AttentionFault


_COMPRESS = "compress.c4 compress.c128"

ROWS = (
    Row("compress-state-kept", "a request goes on with the state of its slot's last one", _COMPRESS, reach.state_kept),
    Row("compress-state-by-row", "state belongs to a request's place in the call", _COMPRESS, reach.state_by_row),
    Row(
        "compress-last-alone",
        "of the entries that a call completes the last one is stored",
        _COMPRESS,
        reach.last_entry_alone,
    ),
    Row("compress-overflow", "softmax without its maximum", _COMPRESS, reach.gates_overflow),
    Row("compress-no-eps", "entries are normalised without eps", _COMPRESS, reach.no_eps),
    Row(
        "compress-near-positions",
        "entries past position 512 have the first ones' angles",
        _COMPRESS,
        reach.near_positions,
    ),
    Row(
        "lengths-unread",
        "stale slots behind a row's length count",
        "bound.window bound.c4 bound.c128 stale.inert",
        reach.lengths_unread,
    ),
    Row(
        "none-is-slot-zero",
        "-1 in front of a row is read as slot 0",
        "bound.window bound.c4 bound.c128",
        reach.none_is_slot_zero,
    ),
    Row(
        "overflow",
        "exponentials of scores above 88 overflow",
        "bound.window bound.c4 bound.c128 memory.canaries",
        reach.overflowing,
    ),
    Row(
        "first-maximum",
        "the maximum of the first 64 keys stands for all",
        "bound.window bound.c4 bound.c128",
        reach.first_maximum,
    ),
    Row("rows-of-a-tile", "queries past the 128th are not answered", "bound.window", reach.rows_of_a_tile),
    Row("alone-cut-short", "a single query's last split is left out", "bound.c4", reach.alone_cut_short),
    Row("none-is-nan", "a row that counts -1 alone is 0/0", "virtual.finite", reach.none_is_nan),
    Row("read-slots-wrap", "slots past 2^15 wrap where they are read", "stale.inert", reach.read_slots_wrap),
    Row("far-keys-dropped", "keys past 320 are not seen", "bound.c4 sink.weight", reach.far_keys_dropped),
    Row("sink-each-split", "the sink counts once for every 256 keys", "sink.weight", reach.sink_each_split),
    Row("nothing-fills-a-tile", "a call of no tokens writes", "memory.canaries", reach.nothing_fills_a_tile),
    Row("columns-wrap", "pages past the 16th are the first ones", "step.window", reach.columns_wrap),
    Row(
        "entry-columns-wrap",
        "pages of entries past the 16th are the first ones",
        "step.entries",
        reach.entry_columns_wrap,
    ),
    Row(
        "found-slots-wrap",
        "slots past 2^15 wrap where they are found",
        "step.window step.entries",
        reach.found_slots_wrap,
    ),
    Row("request-by-rank", "a request is taken for its rank in the call", "step.window step.entries", reach.by_rank),
    Row("eight-entries", "of C128's entries the first 8 are seen", "step.entries", reach.eight_entries),
    Row("few-selected", "of the selected entries the first 256 are seen", "step.entries", reach.few_selected),
    Row("entries-of-tile", "a tile of 32 tokens sees what its last one sees", "step.entries", reach.end_of_tile),
    Row("select-weights-bf16", "the indexer's weights are BF16", "select.set", reach.weights_bf16),
    Row("select-products-bf16", "products of queries and keys are BF16", "select.set", reach.products_bf16),
    Row("select-scores-bf16", "scores are BF16", "select.set", reach.scores_bf16),
    Row("select-near-entries", "entries past 512 are never ranked", "select.set", reach.near_entries),
    Row("select-others-positions", "another request's positions count", "select.set", reach.others_positions),
    Row("select-cut-off", "no more than 256 are selected", "select.set", reach.cut_off),
    Row("slots-wrap", "slots past 2^15 wrap", "insert.bytes insert.only", reach.slots_wrap),
    Row("later-dropped", "tokens past the 128th are not stored", "insert.bytes insert.only", reach.later_dropped),
    Row("least-amax", "a block's amax counts for 1e-2 at least, not 1e-4", "insert.small", small.least_amax),
    Row(
        "least-scale",
        "a block's scale is 1e-2 at least",
        "insert.small insert.scales insert.bytes",
        small.least_scale,
    ),
    Row("entries-least-amax", "an entry's amax counts for 1e-2 at least", _COMPRESS, small.entries_least_amax),
    Row(
        "queries-of-a-tile",
        "queries past the 64th have the first ones' positions",
        "queries.right",
        reach.queries_of_a_tile,
    ),
    Row("output-alone-not-back", "a single token is not rotated back", "output.bound", reach.alone_not_back),
    Row("output-two-alike", "two tokens are the first one twice", "output.bound", reach.two_alike),
    Row("output-scale-of-head", "a head has one scale of E4M3", "output.bound", reach.scale_of_head),
    Row(
        "output-first-positions",
        "tokens past the 64th have the first ones' positions",
        "output.bound",
        reach.first_positions,
    ),
    Row("rope-begins-anew", "angles begin anew every 8,192 positions", "rope.table", reach.angles_begin_anew),
    Row("output-groups-zero", "groups but the first read zeros", "output.groups output.bound", contract.groups_zero),
    Row(
        "output-not-permuted-back",
        "(G, T, R) is read as (T, G, R)",
        "output.groups output.bound",
        contract.not_permuted_back,
    ),
    Row("output-first-half", "the first channels of a head are rotated back", "output.bound", contract.first_half_back),
    Row("output-key-positions", "rotated back at a key's position", "output.bound", contract.key_positions),
    Row(
        "rope-sin-beyond",
        "sines are read behind a wider table's",
        "queries.right insert.bytes output.bound",
        contract.sin_beyond,
    ),
    Row("rope-main-theta", "compressed layers have the main theta", "rope.table", contract.main_theta),
    Row("compress-window-end", "entries are rotated at their last position", _COMPRESS, contract.at_window_end),
    Row("compress-across-channels", "softmax over the channels of a token", _COMPRESS, contract.across_channels),
    Row("entry-early", "an entry of C128 is seen one token early", "step.entries", contract.early),
    Row("selection-ignored", "all complete entries are seen", "step.entries", contract.selection_ignored),
    Row("entry-pages-undivided", "pages hold entries like tokens", "step.entries", contract.pages_undivided),
    Row("select-no-relu", "the indexer has no ReLU", "select.set", contract.no_relu),
    Row("select-nan-garbage", "scores of NaN select numbers of no entry", "select.set", contract.nan_garbage),
    Row("scale-twice", "scores are scaled twice", "bound.window bound.c4 bound.c128", contract.scale_twice),
    Row("kv-nvfp4", "keys are rounded to NVFP4", "insert.bytes", contract.kv_nvfp4),
    Row("scales-interleaved", "scales follow their token's data", "insert.bytes", contract.scales_interleaved),
)
