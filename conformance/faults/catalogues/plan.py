"""Faults of the plan: axes, guards, what the draft and the kernel's choice get."""

from __future__ import annotations

from conformance.faults import (
    guard,
    plan,
)
from conformance.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
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
)
