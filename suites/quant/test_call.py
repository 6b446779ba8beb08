"""What adapters hand to NVFP4's and MXFP8's quantisers and GEMMs on an absent GPU: names, dtypes, shapes.

Calls are bound to the signatures of the library as installed. Says nothing about results.
"""

from __future__ import annotations

import msgspec

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import MoeCall, Stack, TensorInfo
from conformance.stacks.quant_calls_protocol import QuantCallRequest
from conformance.suite import claim
from suites import bound_calls
from suites.quant.calls_due import KINDS, PATHS, Due


@claim("quant.call.sm100")
def sm100(stack: Stack, context: Context) -> Evidence:
    return _bound(stack, context, "sm100")


@claim("quant.call.sm120")
def sm120(stack: Stack, context: Context) -> Evidence:
    return _bound(stack, context, "sm120")


def _bound(stack: Stack, context: Context, profile: str) -> Evidence:
    """Raises NotSupported where the stack cannot tell what it would call."""
    if context.quant_calls is None:
        raise NotSupported(f"the stack {stack.name} does not tell what it would call (no `quant_calls`)")
    request = QuantCallRequest(bound_calls.capability(profile))
    told = context.quant_calls(request)
    findings = wrong(told, request)
    count = sum(map(len, told.values()))
    return bound_calls.evidence(
        findings,
        f"{count} calls",
        count,
        profile,
        {name: msgspec.to_builtins(made) for name, made in told.items()},
        f"{request.tokens} tokens, N {request.n}, K {request.k}, groups {list(request.sizes)}, "
        f"I {request.intermediate}, {request.slots} slots",
    )


def wrong(told: dict[str, list[MoeCall]], request: QuantCallRequest) -> list[Finding]:
    major = request.capability[0]
    findings = []
    for kind in KINDS:
        known = [name for name, path in PATHS.items() if path.kind == kind and major in path.majors]
        if not told.keys() & set(known):
            findings.append(Finding(f"calls of kind {kind}", f"one of {'; '.join(known)}", "; ".join(told) or "none"))
    for name, calls in told.items():
        path = PATHS.get(name)
        if path is None or major not in path.majors:
            findings.append(Finding(name, f"calls that are known on {major}.x", "others"))
        else:
            findings += _compared(name, calls, path.calls(request))
    return findings


def _compared(name: str, calls: list[MoeCall], due: list[Due]) -> list[Finding]:
    if [call.function for call in calls] != [one.function for one in due]:
        names = ", then ".join(call.function for call in calls)
        return [Finding(name, ", then ".join(one.function for one in due), names or "no call")]
    findings = []
    for call, one in zip(calls, due, strict=True):
        at = f"{name}, {call.function}"
        if call.refused:
            findings.append(Finding(at, "a call that binds", call.refused))
            continue
        for argument, (dtype, shape, flat) in one.tensors.items():
            got = call.tensors.get(argument)
            if got is None or not _fits(got, dtype, shape, flat):
                want = _words(TensorInfo(dtype, shape, flat))
                findings.append(Finding(f"{at}, {argument}", want, _words(got) if got else "nothing"))
        for argument, value in one.values.items():
            if (found := call.values.get(argument, "nothing")) != value:
                findings.append(Finding(f"{at}, {argument}", value, found))
    return findings


def _fits(got: TensorInfo, dtype: str, shape: tuple[int, ...], flat: bool) -> bool:
    same = len(got.shape) == len(shape) and all(d in (-1, n) for n, d in zip(got.shape, shape, strict=True))
    single = shape == (1,) and got.shape == ()
    return got.dtype == dtype and (same or single) and (got.contiguous or not flat)


def _words(info: TensorInfo) -> str:
    return f"{info.dtype} {list(info.shape)}" + ("" if info.contiguous else ", not contiguous")
