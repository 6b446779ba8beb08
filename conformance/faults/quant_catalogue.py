"""Faults of the quant layer, with the claims that must fail when one is planted."""

from __future__ import annotations

from typing import NamedTuple

from conformance.faults import fused, gemms, layouts, quant, runners
from conformance.faults.quant_seam import QuantFault


class Row(NamedTuple):
    id: str
    what: str
    claims: str  #: without `quant.`, separated by spaces
    fault: QuantFault
    seen_in: str = ""


_SEEDS = "CuTe DSL NVFP4 seeds"

_CODES = (
    Row(
        "e2m1-ties-away",
        "E2M1 ties are rounded away from zero",
        "e2m1.encode standard.e2m1",
        quant.ties_away,
        "ROCm/aiter #3992",
    ),
    Row(
        "e2m1-ties-down",
        "E2M1 by the first of the nearest in a table: ties go down, Inf becomes 0",
        "e2m1.encode standard.e2m1 nvfp4.ties mxfp4.codes",
        quant.ties_down,
        "FlashInfer's trace reference, compressed-tensors `pack_fp4_to_uint8`",
    ),
    Row("e2m1-five-up", "5 becomes 6", "e2m1.encode standard.e2m1", quant.five_up),
    Row("e2m1-not-saturated", "what is beyond 6 wraps round", "e2m1.encode standard.e2m1", quant.not_saturated),
    Row("e2m1-sign-by-comparison", "the sign is x < 0: -0 is lost", "e2m1.encode", quant.sign_by_comparison),
    Row("e2m1-table", "4 decodes to 5", "e2m1.decode", quant.e2m1_table_shifted),
    Row("nibbles-swapped", "the odd element in the low nibble, both ways", "e2m1.pack", quant.nibbles_swapped),
    Row("e4m3-nan-480", "0x7F decodes to 480", "e4m3.decode standard.e4m3", quant.e4m3_480),
    Row("e4m3-bias", "E4M3 with a bias of 8", "e4m3.decode standard.e4m3", quant.e4m3_bias),
    Row(
        "e4m3-converted",
        "bytes converted to float where they should be seen as E4M3",
        "e4m3.decode standard.e4m3",
        quant.e4m3_converted,
        _SEEDS,
    ),
    Row("e4m3-flushed", "E4M3 subnormals become 0", "e4m3.encode standard.e4m3", quant.e4m3_flushed),
    Row(
        "e4m3-overflow-nan",
        "beyond 448 is NaN where saturation is declared",
        "e4m3.encode",
        quant.e4m3_overflowing,
        "torch up to 2.11, ml_dtypes",
    ),
    Row("e8m0-zero", "scale byte 0x00 decodes to 0", "e8m0.decode standard.e8m0", quant.e8m0_zero, "vLLM 0.33.0"),
    Row(
        "e8m0-inf",
        "scale byte 0xFF decodes to Inf",
        "e8m0.decode standard.e8m0",
        quant.e8m0_inf,
        "vLLM 0.33.0, FlashInfer's trace reference, compressed-tensors",
    ),
    Row("e4m3-nan-zero", "0x7F decodes to 0", "e4m3.decode standard.e4m3", quant.e4m3_nan_zero),
    Row("e8m0-bias-128", "E8M0 with a bias of 128", "e8m0.decode standard.e8m0", quant.e8m0_bias_128),
    Row("e8m0-128", "the value 128 is taken for the NaN", "e8m0.decode standard.e8m0", quant.e8m0_128, "SGLang #25519"),
    Row("e8m0-bias", "E8M0 with a bias of 126", "e8m0.decode standard.e8m0", quant.e8m0_bias),
)
_NVFP4 = (
    Row("nvfp4-ties-away", "codes of ties are rounded away from zero", "nvfp4.ties", quant.nvfp4_wrong("ties away")),
    Row(
        "nvfp4-scale-up", "scales are rounded up, undeclared", "nvfp4.interval", quant.nvfp4_wrong("scale up"), "cuDNN"
    ),
    Row("nvfp4-scale-down", "scales are rounded down", "nvfp4.interval", quant.nvfp4_wrong("scale down")),
    Row(
        "nvfp4-scale-one-up",
        "scales are one code too large",
        "nvfp4.ties nvfp4.interval nvfp4.idempotent",
        quant.nvfp4_wrong("scale one up"),
    ),
    Row(
        "nvfp4-floor-subnormal",
        "scales are at least 2^-9, undeclared",
        "nvfp4.underflow",
        quant.nvfp4_wrong("floor 2^-9"),
        "ModelOpt",
    ),
    Row(
        "nvfp4-floor-normal",
        "scales are at least 2^-6, undeclared",
        "nvfp4.interval nvfp4.underflow",
        quant.nvfp4_wrong("floor 2^-6"),
        "torchao",
    ),
    Row("nvfp4-flushed", "scales below 2^-9 become 0", "nvfp4.underflow", quant.nvfp4_wrong("flushed"), _SEEDS),
    Row(
        "nvfp4-zero-is-one",
        "blocks of zeros have scale 1, undeclared",
        "nvfp4.zero",
        quant.nvfp4_wrong("zero is one"),
        "ModelOpt",
    ),
    Row(
        "nvfp4-amax-clamped",
        "amax is at least 1e-8: blocks of zeros get a scale",
        "nvfp4.zero",
        quant.nvfp4_wrong("amax clamped"),
        f"{_SEEDS}, bug 3",
    ),
    Row(
        "nvfp4-by-a-tiny-number",
        "under a scale of 0, elements are divided by 1e-30",
        "nvfp4.underflow standard.blocks",
        quant.nvfp4_wrong("by a tiny number"),
        f"{_SEEDS}, bug 4",
    ),
    Row("nvfp4-block-32", "one scale per 32 elements", "nvfp4.interval", quant.nvfp4_wrong("block 32")),
    Row("nvfp4-half-a-block", "amax of the first eight elements", "nvfp4.interval", quant.nvfp4_wrong("half a block")),
    Row(
        "nvfp4-signed-maximum",
        "the maximum, not the largest magnitude",
        "nvfp4.ties nvfp4.interval",
        quant.nvfp4_wrong("signed"),
    ),
    Row("nvfp4-four-over-six", "amax / 4, undeclared", "nvfp4.ties nvfp4.interval", quant.nvfp4_wrong("four over six")),
    Row(
        "nvfp4-unrounded-scale",
        "elements are divided by the scale before it is rounded",
        "nvfp4.interval",
        quant.nvfp4_wrong("unrounded"),
    ),
    Row(
        "nvfp4-quotient-bf16",
        "quotients are rounded to BF16 on their way",
        "nvfp4.interval",
        quant.nvfp4_wrong("quotient in bf16"),
    ),
    Row(
        "nvfp4-global-inverted",
        "2688 / amax where amax / 2688 is due",
        "nvfp4.global nvfp4.interval",
        quant.global_inverted,
        "vLLM #55643",
    ),
    Row("nvfp4-global-of-a-row", "the global scale is the first row's", "nvfp4.global", quant.global_of_first_row),
    Row("nvfp4-along-m", "blocks of sixteen tokens", "nvfp4.interval", quant.blocks_along_m),
    Row("nvfp4-global-of-each-row", "a global scale for every row", "nvfp4.global", quant.global_of_each_row),
    Row("nvfp4-overflow-nan", "scales beyond 448 are NaN", "nvfp4.saturation", quant.overflow_is_nan),
    Row(
        "nvfp4-nan-in-padding",
        "NaN in rows behind spoils scales of real rows",
        "nvfp4.rows",
        quant.nan_in_padding,
        f"FlashInfer #3057; {_SEEDS}, lesson 4",
    ),
    Row("nvfp4-input-overwritten", "the input is scaled in place", "nvfp4.rows", quant.input_overwritten),
    Row("nvfp4-views-read-flat", "strides of a view are left out", "nvfp4.rows", quant.views_read_flat),
    Row("nvfp4-scales-remembered", "scales of the call before", "nvfp4.rows", quant.scales_remembered),
    Row("nvfp4-global-forgotten", "dequantised without the global scale", "nvfp4.dequantize", quant.global_forgotten),
    Row("nvfp4-scale-of-32", "dequantised with every other scale", "nvfp4.dequantize", quant.scale_of_32),
    Row("weight-one-global", "one global scale for all matrices", "nvfp4.weight", quant.one_global_scale),
    Row("weight-along-n", "blocks of weights along N", "nvfp4.weight", quant.blocks_along_n, _SEEDS),
    Row("weight-n-doubled", "packing is taken to be along N", "nvfp4.weight", quant.n_doubled, _SEEDS),
    Row(
        "weight-rounded-twice",
        "block scales moved to another global scale, rounded to E4M3 again",
        "nvfp4.weight",
        quant.scales_rounded_twice,
        _SEEDS,
    ),
)
_MX = (
    Row(
        "mxfp4-scale-trunc",
        "MXFP4 scales are amax / 6 rounded down",
        "mxfp4.scale standard.blocks",
        quant.mx_rule("mxfp4", "trunc"),
        "vLLM #43557",
    ),
    Row("mxfp4-scale-up", "MXFP4 scales are rounded up, undeclared", "mxfp4.scale", quant.mx_rule("mxfp4", "rceil")),
    Row(
        "mxfp4-scale-even",
        "MXFP4 scales after rounding amax, undeclared",
        "mxfp4.scale",
        quant.mx_rule("mxfp4", "even"),
    ),
    Row("mxfp4-wraps", "MXFP4 elements beyond 6 wrap round", "mxfp4.codes", quant.mxfp4_wraps),
    Row("mxfp4-zero-scale", "scale 1 for blocks of zeros, undeclared", "mxfp4.zero", quant.mxfp4_zero_scale),
    Row(
        "mxfp4-zero-nan",
        "log2(0): blocks of zeros become NaN",
        "mxfp4.zero standard.blocks",
        quant.mxfp4_zeros_become_nan,
    ),
    Row("mxfp4-decoded-swapped", "dequantised with nibbles swapped", "mxfp4.dequantize", quant.decoded_swapped),
    Row(
        "mxfp4-nan-scale",
        "scale 0xFF dequantises to numbers",
        "mxfp4.dequantize standard.e8m0",
        quant.mxfp4_nan_scale_ignored,
    ),
    Row(
        "mxfp8-scale-floor",
        "MXFP8 scales are rounded down where up is declared",
        "mxfp8.scale",
        quant.mx_rule("mxfp8", "floor"),
    ),
    Row("mxfp8-truncated", "MXFP8 elements are rounded towards zero", "mxfp8.codes", quant.mxfp8_truncated),
    Row("mxfp8-zero-scale", "scale 1 for blocks of zeros, undeclared", "mxfp8.zero", quant.mxfp8_zero_scale),
    Row(
        "mxfp8-kept-under-zero",
        "elements under a scale byte 0 are kept where zeros are declared",
        "mxfp8.zero",
        quant.mxfp8_kept_under_zero,
        "vLLM 0.33.0's torch quantiser beside FlashInfer's",
    ),
    Row(
        "mxfp8-nan-scale",
        "scale 0xFF dequantises to numbers",
        "mxfp8.dequantize standard.e8m0",
        quant.mxfp8_nan_scale_ignored,
    ),
)
_LAYOUTS = (
    *(
        Row(f"swizzle-{name}", what, "layout.swizzle", layouts.swizzle_wrong(wrong), seen)
        for name, wrong, what, seen in (
            ("none", "none", "scales are not swizzled", ""),
            ("quarters", "quarters", "row % 4 and row // 4 in place of row % 32 and row // 32", ""),
            ("transposed", "transposed", "rows and blocks of a tile are transposed", ""),
            ("rows-first", "rows first", "tiles follow each other along rows", ""),
            ("floor", "floor", "tiles across are counted with floor", ""),
            ("8x4", "8x4", "tiles of 8 x 4", ""),
            ("padding", "padding", "padding is 0x7F", "vLLM #38148, #37564"),
            ("unpadded", "unpadded", "rows are padded to 32 only", "vLLM #55643"),
            ("twice", "twice", "swizzled twice", ""),
        )
    ),
    Row(
        "unswizzle-padding",
        "columns of padding stay in",
        "layout.unswizzle",
        layouts.unswizzle_keeps_padding,
        "vLLM 0.33.0, `convert_swizzled_to_linear`",
    ),
    Row("unswizzle-rows", "two rows change places", "layout.unswizzle", layouts.unswizzle_rows_moved),
    Row("groups-flat", "one swizzle over all groups", "layout.groups", layouts.groups_flat, _SEEDS),
    Row("groups-starts", "groups start at unpadded rows", "layout.groups", layouts.group_starts_unpadded, _SEEDS),
    Row("experts-flat", "one swizzle over all experts", "layout.experts", layouts.experts_flat, _SEEDS),
    Row(
        "interleave-halved",
        "granularity // 2, as if packing were along N",
        "layout.interleave layout.interleave_scales",
        layouts.interleave_halved,
        f"{_SEEDS}, granularity 4 for 8",
    ),
    Row("interleave-doubled", "twice the granularity", "layout.interleave", layouts.interleave_doubled),
    Row("interleave-single", "single rows take turns", "layout.interleave", layouts.interleave_single),
    Row(
        "interleave-up-first",
        "up comes first",
        "layout.interleave layout.interleave_scales",
        layouts.interleave_up_first,
    ),
    Row("interleave-twice", "interleaved twice, as on a reload", "layout.interleave", layouts.interleave_twice),
    Row(
        "interleave-scales-left", "scales stay where they were", "layout.interleave_scales", layouts.scales_left, _SEEDS
    ),
    Row(
        "interleave-after-swizzle",
        "scales are interleaved after they were swizzled",
        "layout.interleave_scales",
        layouts.interleave_after_swizzle,
        _SEEDS,
    ),
    Row("interleave-along-k", "bytes of a row take turns, not rows", "layout.interleave", layouts.interleave_along_k),
    Row(
        "swizzle-converted",
        "scale bytes are converted to E4M3 on their way",
        "layout.swizzle",
        layouts.swizzle_converted,
        _SEEDS,
    ),
    Row("interleave-codes-left", "codes stay where they were", "layout.interleave", layouts.codes_left),
    Row(
        "deinterleave-halved",
        "taken apart by half the granularity",
        "layout.deinterleave",
        layouts.deinterleave_halved,
        _SEEDS,
    ),
    Row("not-k-major", "`.contiguous()` after the transpose", "layout.k_major", layouts.not_k_major, _SEEDS),
)
_GEMMS = (
    Row("gemm-nibbles", "nibbles of the weights are swapped", "gemm.elements", gemms.nibbles_swapped),
    Row(
        "gemm-scales-of-next-block",
        "scales of the weights are a block off",
        "gemm.scales gemm.bound",
        gemms.scales_of_next_block,
    ),
    Row("gemm-granularity", "one scale per 32 elements of the weights", "gemm.scales gemm.bound", gemms.scales_of_32),
    Row("gemm-scales-missing", "scales of the weights are taken as 1", "gemm.scales gemm.bound", gemms.scales_missing),
    Row("gemm-scales-rows", "scales of the weights are 32 rows off", "gemm.scales gemm.bound", gemms.scales_rows_moved),
    Row("gemm-scales-of-first", "scales of the first expert for all", "gemm.scales gemm.bound", gemms.scales_of_first),
    Row(
        "gemm-global-of-next", "global scales are an expert off", "gemm.global_scales gemm.bound", gemms.global_of_next
    ),
    Row("gemm-last-row", "the last row of the weights is lost", "gemm.tails gemm.elements", gemms.last_row_dropped),
    Row("gemm-last-block", "the last scales of K are lost", "gemm.tails gemm.scales", gemms.last_block_dropped),
    Row(
        "gemm-activation-scales",
        "scales of activations are a row off",
        "gemm.activations gemm.bound",
        gemms.activation_scales_moved,
    ),
    Row(
        "gemm-activation-global",
        "global scales of activations are left out",
        "gemm.global_scales gemm.bound",
        gemms.activation_global_missing,
    ),
    Row(
        "gemm-packed-at-zero",
        "groups are read at multiples of the largest",
        "gemm.groups",
        gemms.packed_at_zero,
        _SEEDS,
    ),
    Row("gemm-last-group", "the last group is left out", "gemm.groups gemm.dense", gemms.last_group_dropped),
    Row("gemm-empty-shifts", "an empty group shifts the experts behind it", "gemm.groups", gemms.empty_shifts),
    Row("gemm-beyond-written", "a row behind the last group is written", "gemm.groups", gemms.beyond_written),
    Row("gemm-nan-spreads", "a NaN reaches its whole group", "gemm.isolation", gemms.rows_mixed),
    Row("gemm-nan-swallowed", "a NaN becomes 0", "gemm.isolation", gemms.nan_swallowed),
    Row("gemm-nan-scale", "a NaN scale of the weights is a number", "gemm.isolation", gemms.nan_scale_finite),
    Row("gemm-sums-bf16", "half of each sum is rounded to BF16", "gemm.bound", gemms.sums_in_bf16),
    Row(
        "gemm-first-shape", "compiled for the first shape", "gemm.shapes", gemms.first_shape, f"{_SEEDS}, dummy shapes"
    ),
    Row(
        "gemm-first-buffers",
        "bound to the buffers of the first call",
        "gemm.shapes",
        gemms.first_buffers,
        f"{_SEEDS}, TMA descriptors",
    ),
    Row(
        "gemm-activation-global-of-next",
        "global scales of activations are a group off",
        "gemm.global_scales gemm.bound",
        gemms.activation_global_of_next,
    ),
    Row("gemm-padded-sizes", "groups run on to whole eights of rows", "gemm.groups", gemms.padded_sizes),
    Row("gemm-n-doubled", "packing is taken to be along N", "gemm.elements gemm.bound", gemms.columns_doubled, _SEEDS),
    Row(
        "gemm-tokens-first",
        "(T, G, D) is seen as (G T, D) without a permute",
        "gemm.elements gemm.scales",
        gemms.tokens_first,
        _SEEDS,
    ),
    Row(
        "gemm-layout-of-activations",
        "scales of the weights lie as activations' do",
        "gemm.scales gemm.bound",
        gemms.layout_of_activations,
    ),
    Row("gemm-weights-by-shape", "prepared weights are kept by their shape", "gemm.shapes", gemms.weights_by_shape),
    Row("gemm-key-without-n", "a compiled kernel is kept without N in its key", "gemm.shapes", gemms.kernel_without_n),
    Row("linear-smallest", "the smaller global scale for both parts", "linear.dual", gemms.smallest_scale),
    Row(
        "linear-alpha-missing",
        "the weights' global scale is left out",
        "linear.weights linear.bound",
        gemms.alpha_missing,
    ),
    Row(
        "linear-calibrated",
        "the input's scale is that of a warm-up on normal numbers",
        "linear.static",
        gemms.calibrated,
        _SEEDS,
    ),
    Row(
        "linear-reads-given",
        "the weights given are read at the first call",
        "linear.weights linear.bound",
        gemms.reads_what_was_given,
    ),
    Row("linear-any-weights", "a placeholder of one byte is prepared", "linear.refusals", gemms.any_weights, _SEEDS),
    Row("linear-views-flat", "strides of a view are left out", "linear.shapes", gemms.linear_views_flat),
    Row("linear-one-scalar", "two global scales are read as one", "linear.dual", gemms.one_scalar, _SEEDS),
    Row(
        "linear-largest",
        "the larger global scale for both parts",
        "linear.dual",
        gemms.largest_scale,
        "vLLM #47515, #41769",
    ),
    Row("linear-mean", "the mean of the global scales", "linear.dual", gemms.mean_scale, _SEEDS),
    Row(
        "linear-folded",
        "global scales folded into block scales, rounded again",
        "linear.dual",
        gemms.scales_folded,
        _SEEDS,
    ),
    Row("linear-split-in-the-middle", "rows are split at N / 2", "linear.dual", gemms.split_in_the_middle),
    Row("linear-alpha", "the weights' global scale goes in twice", "linear.weights linear.bound", gemms.alpha_twice),
    Row("linear-nibbles", "nibbles of the weights are swapped", "linear.weights linear.bound", gemms.linear_nibbles),
    Row("linear-bias-dropped", "no bias", "linear.bias", gemms.bias_dropped),
    Row("linear-bias-scaled", "bias is added before the scale", "linear.bias", gemms.bias_scaled),
    Row("linear-input-inverted", "1 / input scale", "linear.static", gemms.input_scale_inverted, _SEEDS),
    Row(
        "linear-any-input-scale",
        "an input scale of 0, Inf or NaN is taken",
        "linear.static",
        gemms.any_input_scale,
        _SEEDS,
    ),
    Row("linear-overflow-nan", "large inputs become NaN", "linear.static", gemms.nan_on_overflow, _SEEDS),
    Row("linear-any-width", "an input of another width is taken", "linear.shapes", gemms.any_width),
    Row("linear-axes-lost", "leading axes are flattened", "linear.shapes", gemms.leading_axes_lost),
)
_SWIGLU = (
    Row(
        "swiglu-granularity",
        "interleaved by 4 under an epilogue that reads by 8",
        "swiglu.pairing",
        fused.granularity_halved,
        _SEEDS,
    ),
    Row("swiglu-up-first", "gate and up change places", "swiglu.pairing swiglu.clamp", fused.up_first),
    Row(
        "swiglu-one-row-on", "each gate meets the up of the row before", "swiglu.pairing swiglu.bound", fused.one_row_on
    ),
    Row("swiglu-left-interleaved", "outputs come in another order", "swiglu.pairing", fused.left_interleaved),
    Row("swiglu-silu-on-all", "SiLU on up too", "swiglu.pairing swiglu.clamp", fused.silu_on_all, _SEEDS),
    Row("swiglu-clamp-after", "SiLU first, then the limit", "swiglu.clamp", fused.clamp_after, _SEEDS),
    Row("swiglu-clamp-missing", "no limit", "swiglu.clamp", fused.clamp_missing, "SGLang #23776"),
    Row("swiglu-clamp-both-sides", "gate clamped from below too", "swiglu.clamp", fused.clamp_both_sides),
    Row("swiglu-up-above-only", "up clamped from above only", "swiglu.clamp", fused.up_above_only),
    Row("swiglu-alpha-after", "the gate's global scale goes in after SiLU", "swiglu.alpha", fused.alpha_after),
    Row("swiglu-gate-alpha", "the gate's global scale for up too", "swiglu.alpha", fused.gate_alpha_for_both, _SEEDS),
    Row("swiglu-overflow", "exp(x) / (1 + exp(x)): NaN for large gates", "swiglu.extremes", fused.overflowing),
    Row(
        "swiglu-hard-sigmoid",
        "a sigmoid of straight lines",
        "swiglu.bound swiglu.clamp",
        fused.hard_sigmoid,
        "vLLM #24833",
    ),
)
_SUBTILES = (
    Row(
        "swiglu-gate-by-number",
        "interleaved subtiles are gates as long as their number is below half",
        "swiglu.pairing",
        fused.gates_by_number,
        _SEEDS,
    ),
    Row("swiglu-subtile-before", "gates of the subtile before", "swiglu.pairing", fused.subtile_before, _SEEDS),
    Row(
        "swiglu-tile-start",
        "a tile's first gates are read before they are there",
        "swiglu.pairing swiglu.bound",
        fused.buffer_uninitialised,
        _SEEDS,
    ),
    Row(
        "swiglu-tile-before",
        "a tile's first gates are those of the tile before",
        "swiglu.bound",
        fused.buffer_carried,
        _SEEDS,
    ),
    Row(
        "swiglu-quantised-half",
        "a block's scale is that of one subtile of eight",
        "swiglu.quantised",
        fused.quantised_by_half,
        _SEEDS,
    ),
    Row(
        "swiglu-quantised-neighbours",
        "subtiles are joined to blocks of sixteen one too late",
        "swiglu.quantised",
        fused.quantised_by_neighbours,
        _SEEDS,
    ),
    Row("swiglu-quantised-rows", "scales are a row off", "swiglu.quantised", fused.quantised_rows),
    Row("swiglu-quantised-gates", "gates are quantised too", "swiglu.quantised", fused.quantised_gates_too),
    Row("swiglu-quantised-own", "the global scale given is not used", "swiglu.quantised", fused.quantised_by_own),
    Row(
        "swiglu-quantised-rounded",
        "the product is rounded to BF16 first, undeclared",
        "swiglu.quantised",
        fused.quantised_rounded,
    ),
)
_RUNNER = (
    Row("runner-ids-not-offset", "global ids are taken for local ones", "moe.experts moe.ranks", runners.not_offset),
    Row("runner-ids-offset-twice", "a rank's first expert is taken off twice", "moe.experts", runners.offset_twice),
    Row("runner-minus-one", "id -1 reads the last expert", "moe.experts", runners.minus_one_wraps, "vLLM #46408"),
    Row("runner-beyond", "ids beyond the rank's experts read its last one", "moe.experts", runners.beyond_clamped),
    Row(
        "runner-tile-end",
        "tokens of an expert beyond whole tiles of 128 are lost",
        "moe.experts",
        runners.last_of_tile_lost,
    ),
    Row(
        "runner-scatter", "a token's last slot overwrites the others", "moe.experts moe.weights", runners.last_slot_wins
    ),
    Row("runner-duplicates", "an expert that a token names twice counts once", "moe.experts", runners.duplicates_once),
    Row("runner-sorted", "routes are taken to come sorted by id", "moe.experts", runners.sorted_taken),
    Row("runner-stale", "rows of a larger batch before are added", "moe.ranks", runners.stale),
    Row(
        "runner-too-many", "tokens beyond the most are left out, without an error", "moe.ranks", runners.too_many_taken
    ),
    Row(
        "runner-width",
        "the scatter goes by another width than the hidden size",
        "moe.experts",
        runners.other_width,
        f"{_SEEDS}, HC_DIM",
    ),
    Row(
        "runner-table",
        "counted by a boolean for every slot and expert",
        "moe.counting",
        runners.counted_as_table,
        f"{_SEEDS}, bug 5",
    ),
    Row("runner-count-bytes", "counts wrap at 128", "moe.counting", runners.counted_in_bytes),
    Row(
        "runner-limit",
        "the SwiGLU limit is not passed on",
        "moe.clamp moe.stages",
        runners.limit_not_passed,
        "vllm-ascend #14363, SGLang #23776",
    ),
    Row("runner-clamp-after", "SiLU first, then the limit", "moe.clamp moe.stages", runners.clamped_after, _SEEDS),
    Row("runner-up-first", "[up; gate]", "moe.experts moe.clamp moe.stages", runners.up_first, "SGLang #32430"),
    Row("runner-mean-scale", "the mean of gate's and up's global scales", "moe.stages", runners.mean_of_scales, _SEEDS),
    Row("runner-gate-scale", "the gate's global scale for up too", "moe.stages", runners.gates_scale_for_both, _SEEDS),
    Row("runner-down-transposed", "W2 is read transposed", "moe.experts moe.stages", runners.down_transposed),
    Row(
        "runner-weight-on-input",
        "routing weights multiply the input",
        "moe.experts moe.weights",
        runners.weighted_input,
    ),
    Row(
        "runner-weight-before",
        "routing weights go in before the second quantisation",
        "moe.weights",
        runners.weighted_activation,
    ),
    Row("runner-weight-ignored", "no routing weights", "moe.experts moe.weights", runners.weights_ignored),
    Row(
        "runner-activation-scale",
        "the activation is quantised by the input's global scale",
        "moe.stages",
        runners.activation_by_input_scale,
    ),
    Row("runner-sum-bf16", "slots are summed in BF16", "moe.weights", runners.sum_in_bf16),
    Row("runner-batch-scale", "the input's scale is that of its batch", "moe.ranks", runners.scale_of_the_batch),
    Row("shared-no-limit", "no limit in the shared expert", "moe.shared", runners.shared_unlimited, "SGLang #23776"),
    Row("shared-scaled", "the shared expert by the routed factor", "moe.shared", runners.shared_by_routed_factor),
    Row("shared-thrice", "each of three ranks adds the whole shared expert", "moe.shared", runners.shared_added_thrice),
    Row("shared-merged", "one global scale for the shared expert's gate and up", "moe.shared", runners.shared_merged),
    Row("shared-tile-end", "tokens beyond whole tiles of 128 are lost", "moe.shared", runners.shared_last_rows, _SEEDS),
)
#: Of kinds that were planted in the reference stack once and passed.
_PASSED_ONCE = (
    Row(
        "nvfp4-first-tile", "rows from 128 on take the first rows' scales", "nvfp4.interval", quant.scales_of_first_tile
    ),
    Row("mxfp4-smallest", "exponents of blocks end at -126", "mxfp4.scale", quant.mxfp4_smallest_lost),
    Row("swizzle-rows-512", "scales from row 512 on are lost", "layout.swizzle", layouts.swizzle_rows_512),
    Row("gemm-rows-256", "rows of a group beyond 256 are lost", "gemm.groups", gemms.rows_beyond_256),
    Row(
        "gemm-input-overwritten",
        "activations are overwritten",
        "gemm.groups gemm.elements",
        gemms.gemm_input_overwritten,
    ),
    Row("linear-bias-of-first", "the second part of the rows has no bias", "linear.bias", gemms.bias_of_first),
    Row("linear-first-scale", "the first input's scale serves all", "linear.dynamic", gemms.first_scale_kept),
    Row("linear-float32", "the result comes in float32", "linear.weights linear.bound", gemms.unrounded),
    Row("linear-input-scaled", "x is scaled in place", "linear.weights linear.bound", gemms.linear_input_scaled),
    Row("swiglu-nan-swallowed", "the clamp swallows a NaN, undeclared", "swiglu.isolation", fused.nan_swallowed),
    Row("swiglu-nan-spread", "a NaN reaches its tile of rows", "swiglu.isolation", fused.nan_spread),
    Row("runner-empty-weighed", "NaN weights of empty slots show", "moe.isolation", runners.empty_weighed),
    Row("runner-padding", "NaN of padding rows shows", "moe.isolation", runners.padding_mixed, "FlashInfer #3057"),
    Row("runner-nan-spread", "a NaN reaches its tile of rows", "moe.isolation", runners.nan_of_neighbour),
    Row("runner-ids-overwritten", "ids are made local in place", "moe.experts", runners.ids_overwritten),
)
ROWS: tuple[Row, ...] = (*_CODES, *_NVFP4, *_MX, *_LAYOUTS, *_GEMMS, *_SWIGLU, *_SUBTILES, *_RUNNER, *_PASSED_ONCE)
