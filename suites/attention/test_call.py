"""What the adapter hands to attention kernels on a GPU that need not be there: names, dtypes, shapes. Nothing runs.

Calls are bound to the signatures of the library as installed. Says nothing about results.
"""

from __future__ import annotations

import msgspec

from conformance import expected
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.attention_calls_protocol import ENTRIES, WINDOW, CallRequest
from conformance.stacks.protocols import MoeCall, Stack
from conformance.suite import claim
from suites import bound_calls
from suites.attention.bench import D

_TOKENS = 5
_RATIOS = (0, 4, 128)
_ROW = 584
#: Heads that a kernel takes; None: any. Source: FlashInfer 0.7.2, `_check_dsv4_sparse_mla_inputs`; FlashMLA.
_HEADS: dict[str, tuple[int, ...] | None] = {
    "flash_mla_with_kvcache": (64, 128),
    "trtllm_batch_decode_sparse_mla_dsv4": (8, 16, 32, 64, 128),
    "run": None,
}
#: (dtype, shape); in a shape -1 is any length.
Due = dict[str, tuple[str, tuple[int, ...]]]


@claim("attention.call.sm90")
def sm90(stack: Stack, context: Context) -> Evidence:
    return _bound(stack, context, "sm90")


@claim("attention.call.sm100")
def sm100(stack: Stack, context: Context) -> Evidence:
    return _bound(stack, context, "sm100")


@claim("attention.call.sm120")
def sm120(stack: Stack, context: Context) -> Evidence:
    return _bound(stack, context, "sm120")


def _bound(stack: Stack, context: Context, profile: str) -> Evidence:
    """Raises NotSupported where the stack cannot tell what it would call."""
    if context.attention_calls is None:
        raise NotSupported(f"the stack {stack.name} does not tell what it would call (no `attention_calls`)")
    capability = bound_calls.capability(profile)
    heads = expected.axes(context.geometry, context.target.tp)["heads"].per_rank
    findings, told = list[Finding](), list[MoeCall]()
    for ratio in _RATIOS:
        made = context.attention_calls(CallRequest(heads, _TOKENS, ratio, capability))
        told += made
        findings += _wrong(made, f"ratio {ratio}", heads, ratio, capability[0])
    measured = {"calls": msgspec.to_builtins(told)}
    method = f"{heads} heads a rank, {_TOKENS} tokens, {WINDOW} keys of the window, {ENTRIES} compressed entries"
    return bound_calls.evidence(findings, f"{len(told)} calls", told, profile, measured, method)


def _wrong(calls: list[MoeCall], where: str, heads: int, ratio: int, major: int) -> list[Finding]:
    refused = [Finding(f"{where}, {c.function}", "a call that binds", c.refused) for c in calls if c.refused]
    main = [c for c in calls if c.function in _HEADS and not c.refused]
    if refused or len(main) != 1:
        return refused or [Finding(where, f"one call of {', '.join(_HEADS)}", f"{len(main)} calls")]
    call, findings = main[0], list[Finding]()
    query = next((call.tensors[n] for n in ("q", "query", "q_nope") if n in call.tensors), None)
    padded = query.shape[-2] if query and len(query.shape) > 2 else 0
    taken = _HEADS[call.function]
    if padded < heads or (taken is not None and padded not in taken):
        due = f"at least {heads}, " + (f"one of {', '.join(map(str, taken))}" if taken else "any count")
        findings.append(Finding(f"{where}, {call.function}, heads", due, str(padded)))
    tensors, values = _due(call.function, padded, ratio, major)
    for name, (dtype, shape) in tensors.items():
        got = call.tensors.get(name)
        words = f"{got.dtype} {list(got.shape)}" if got else "nothing"
        if got is None or got.dtype != dtype or not _fits(got.shape, shape):
            findings.append(Finding(f"{where}, {call.function}, {name}", f"{dtype} {list(shape)}", words))
    for name, value in values.items():
        if call.values.get(name) != value:
            findings.append(Finding(f"{where}, {call.function}, {name}", value, call.values.get(name, "nothing")))
    return findings


def _due(function: str, padded: int, ratio: int, major: int) -> tuple[Due, dict[str, str]]:
    """Tensors and plain values of the call. A kernel's own axis of one query a request is left out of the shapes."""
    t, rows, scale = _TOKENS, (_TOKENS, padded, D), str(D**-0.5)
    if function == "run":  # FlashInfer's MLA: its plan holds the rest
        return {"q_nope": ("bfloat16", rows), "ckv_cache": ("bfloat16", (-1, D)), "out": ("bfloat16", rows)}, {}
    if function == "flash_mla_with_kvcache":
        names = ("q", "k_cache", "indices", "topk_length", "attn_sink")
        extra = ("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length")
        values = {"head_dim_v": str(D), "is_fp8_kvcache": "True", "softmax_scale": scale}
    else:
        names = ("query", "swa_kv_cache", "sparse_indices", "swa_topk_lens", "sinks")
        extra = ("compressed_kv_cache", "extra_sparse_indices", "extra_sparse_topk_lens")
        values = {"bmm1_scale": scale}
    query, cache, slots, lengths, sinks = names
    due: Due = {query: ("bfloat16", rows), "out": ("bfloat16", rows), sinks: ("float32", (padded,))}
    if function != "flash_mla_with_kvcache" and major == 10:
        width = WINDOW + (ENTRIES if ratio else 0)
        due |= {cache: ("bfloat16", (-1, 64, D)), extra[0]: ("bfloat16", (-1, -1, D)), slots: ("int32", (t, width))}
        due |= {"sparse_topk_lens": ("int32", (t,)), "seq_lens": ("int32", (t,)), "cum_seq_lens_q": ("int32", (t + 1,))}
        return due, values | {"max_q_len": "1"}
    due |= {cache: ("uint8", (-1, 64, _ROW)), slots: ("int32", (t, WINDOW)), lengths: ("int32", (t,))}
    if ratio:
        due[extra[0]] = "uint8", (-1, 256 // ratio, _ROW)
        due |= {extra[1]: ("int32", (t, ENTRIES)), extra[2]: ("int32", (t,))}
    return due, values if function == "flash_mla_with_kvcache" else values | {"kv_layout": "NHD"}


def _fits(got: tuple[int, ...], due: tuple[int, ...]) -> bool:
    """Axes of one are free: of the single KV head, and of a request's single query."""
    shape = tuple(n for n in got if n != 1)
    return len(shape) == len(due) and all(d in (-1, n) for n, d in zip(shape, due, strict=True))
