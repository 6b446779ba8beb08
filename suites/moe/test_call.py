"""What the adapter hands to the kernel library on a GPU that need not be there: names, dtypes and shapes. Nothing runs.

The calls are bound to the signatures of the library as installed, for weights in the kernel width that the backend has
(`flashinfer_cutlass`, or `marlin` and `flashinfer_cutedsl` where those are asked for). Says nothing about results.
"""

from __future__ import annotations

import msgspec

import hardware_profiles
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.provenance import loaded
from conformance.provenance.checkpoint import seeded
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import MoeCall, MoeCalls, MoeRequest, Stack, TensorInfo
from conformance.suite import claim
from conformance.target import Target
from suites import bound_calls
from suites.moe import marlin_calls, nvfp4_calls

_BACKEND, _MARLIN = "flashinfer_cutlass", "marlin"
_CALL = "cutlass_fused_moe"
_OWN = (_MARLIN, nvfp4_calls.BACKEND)
_EXPERTS, _TOKENS = 2, 5


@claim("moe.call.sm90")
def sm90(stack: Stack, context: Context) -> Evidence:
    return _bound(stack, context, "sm90")


@claim("moe.call.sm100")
def sm100(stack: Stack, context: Context) -> Evidence:
    return _bound(stack, context, "sm100")


@claim("moe.call.sm120")
def sm120(stack: Stack, context: Context) -> Evidence:
    return _bound(stack, context, "sm120")


def _bound(stack: Stack, context: Context, profile: str) -> Evidence:
    """Raises NotSupported where the stack cannot tell what it would call."""
    calls: MoeCalls | None = context.moe_calls
    if calls is None:
        raise NotSupported(f"the stack {stack.name} does not tell what it would call (no `moe_calls`)")
    capability = bound_calls.capability(profile)
    t, slots = _target(context.target), min(2, context.geometry.top_k)
    marlin, nvfp4 = t.backend == _MARLIN, t.backend == nvfp4_calls.BACKEND
    shown = marlin_calls.FUNCTIONS if marlin else (_CALL, nvfp4_calls.CUTE)
    findings, told = list[Finding](), list[MoeCall]()
    for rank in context.ranks:
        weights = loaded.due(t).weights(rank, seeded(t.seed))
        limit = context.geometry.swiglu_limit
        request = MoeRequest(t.geometry, t.tp, rank, t.backend, capability, _EXPERTS, limit, weights)
        made = calls(request, capability, _TOKENS, slots)
        told = told or made
        if marlin:
            findings += _refused(made, rank) + marlin_calls.wrong(made, request, _TOKENS, slots)
        elif nvfp4:
            findings += nvfp4_calls.wrong(made, request, _TOKENS, slots)
        else:
            findings += _wrong(made, request, hardware_profiles.load(profile).arithmetic, slots)
    measured = {"calls": msgspec.to_builtins([call for call in told if call.function in shown])}
    method = f"{_EXPERTS} experts, {_TOKENS} tokens of {slots} slots, kernels of {t.backend}'s width"
    return bound_calls.evidence(findings, f"{len(told)} calls a rank", told, profile, measured, method)


def _target(target: Target) -> Target:
    """The same model in the kernel width that the backend has; others are asked about as FlashInfer's CUTLASS."""
    known = hardware_profiles.backends()[target.backend if target.backend in _OWN else _BACKEND]
    return msgspec.structs.replace(
        target, backend=known.name, intermediate_roundings=known.intermediate, hidden_roundings=known.hidden
    )


def _refused(calls: list[MoeCall], rank: int) -> list[Finding]:
    return [
        Finding(f"rank {rank}, {call.function}", "a call that binds", call.refused, rank=rank)
        for call in calls
        if call.refused
    ]


def _wrong(calls: list[MoeCall], request: MoeRequest, scheme: str, slots: int) -> list[Finding]:
    findings = _refused(calls, request.rank)
    main = [call for call in calls if call.function == _CALL and not call.refused]
    if len(main) != 1:
        at = f"rank {request.rank}"
        return findings or [Finding(at, f"one call of {_CALL}", f"{len(main)} calls", rank=request.rank)]
    tensors, values = _due(request, scheme, slots)
    for name, due in tensors.items():
        got = main[0].tensors.get(name)
        if got is None or not _fits(got, due):
            where = f"rank {request.rank}, {_CALL}, {name}"
            findings.append(Finding(where, _words(due), _words(got) if got else "nothing", rank=request.rank))
    for name, value in values.items():
        if main[0].values.get(name, "False") != value:
            where = f"rank {request.rank}, {_CALL}, {name}"
            findings.append(Finding(where, value, main[0].values.get(name, "nothing"), rank=request.rank))
    return findings


def _due(request: MoeRequest, scheme: str, slots: int) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Tensors and plain values of the call. Where the layout is the library's own, the shape is its count of bytes."""
    w13, w2 = request.weights.info("w13_weight"), request.weights.info("w2_weight")
    e, h, rows, width = request.experts, w2.rows, w13.rows, w2.cols * 2
    tensors = {
        "token_selected_experts": TensorInfo("int32", (_TOKENS, slots)),
        "token_final_scales": TensorInfo("float32", (_TOKENS, slots)),
        "output": TensorInfo("bfloat16", (_TOKENS, h)),
    }
    if request.limit is not None:
        tensors["swiglu_limit"] = TensorInfo("float32", (e,))
    if scheme == "bf16":
        tensors |= {
            "input": TensorInfo("bfloat16", (_TOKENS, h)),
            "fc1_expert_weights": TensorInfo("uint8", (e, rows, h // 2)),
            "fc2_expert_weights": TensorInfo("uint8", (e, h, width // 2)),
            "quant_scales[0]": TensorInfo("uint8", (e * rows * h // 32,)),
            "quant_scales[1]": TensorInfo("uint8", (e * h * width // 32,)),
        }
    else:
        tensors |= {
            "input": TensorInfo("float8_e4m3fn", (_TOKENS, h)),
            "input_sf": TensorInfo("uint8", (-(-_TOKENS // 128) * 128 * (-(-h // 128) * 4),)),
            "fc1_expert_weights": TensorInfo("int64", (e, rows, h // 16)),
            "fc2_expert_weights": TensorInfo("int64", (e, h, width // 16)),
            "quant_scales[0]": TensorInfo("int32", (e, rows, h // 128)),
            "quant_scales[1]": TensorInfo("float32", (e,)),
            "quant_scales[2]": TensorInfo("int32", (e, h, width // 128)),
            "quant_scales[3]": TensorInfo("float32", (e,)),
        }
    values = {
        "output_dtype": "bfloat16",
        "tp_size": str(request.tp),
        "tp_rank": str(request.rank),
        "use_w4_group_scaling": str(scheme == "bf16"),
        "use_mxfp8_act_scaling": str(scheme == "mxfp8"),
    }
    return tensors, values


def _fits(got: TensorInfo, due: TensorInfo) -> bool:
    """A due shape of one number is a count, whatever the layout."""
    count = 1
    for size in got.shape:
        count *= size
    same = got.shape == due.shape or (len(due.shape) == 1 and due.dtype == "uint8" and count == due.shape[0])
    return got.dtype == due.dtype and got.contiguous and same


def _words(info: TensorInfo) -> str:
    return f"{info.dtype} {list(info.shape)}" + ("" if info.contiguous else ", not contiguous")
