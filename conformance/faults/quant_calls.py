"""Faults of the calls that an adapter makes of NVFP4's quantisers and GEMMs on a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from conformance.stacks.protocols import MoeCall, TensorInfo
from conformance.stacks.quant_calls_protocol import QuantCallRequest, QuantCalls

Told = dict[str, list[MoeCall]]


class QuantCallFault(NamedTuple):
    """Changes what is told, in place."""

    change: Callable[[Told], None]

    def planted(self, clean: QuantCalls) -> QuantCalls:
        def calls(request: QuantCallRequest) -> Told:
            told = clean(request)
            self.change(told)
            return told

        return calls


def _each(told: Told, *names: str) -> list[tuple[MoeCall, str, TensorInfo]]:
    every = [call for calls in told.values() for call in calls]
    return [(call, name, call.tensors[name]) for call in every for name in names if name in call.tensors]


def _renamed(told: Told) -> None:
    for calls in told.values():
        if calls[-1].function in ("mm_fp4", "cutlass_scaled_fp4_mm"):
            calls[-1].refused = "got an unexpected keyword argument 'scale_a'"


def _scales_unpadded(told: Told) -> None:
    """Scales of the weights have N rows, no whole tiles of 128."""
    for call, name, info in _each(told, "b_descale", "block_scale_b", "b_scale"):
        call.tensors[name] = TensorInfo(info.dtype, tuple(224 if n == 256 else n for n in info.shape), info.contiguous)


def _scales_linear(told: Told) -> None:
    """Activations are quantised with rows and blocks as they are."""
    for calls in told.values():
        for call in calls:
            for name in ("sfLayout", "is_sf_swizzled_layout"):
                if name in call.values:
                    call.values[name] = "SfLayout.layout_linear" if name == "sfLayout" else "False"


def _alpha_bf16(told: Told) -> None:
    for call, name, info in _each(told, "alpha", "alphas"):
        call.tensors[name] = TensorInfo("bfloat16", info.shape, info.contiguous)


def _one_alpha(told: Told) -> None:
    """One global scale for all experts."""
    for call, name, info in _each(told, "alpha", "alphas", "input_global_scale"):
        if info.shape and info.shape[-1] == 3:
            call.tensors[name] = TensorInfo(info.dtype, (*info.shape[:-1], 1), info.contiguous)


def _starts_long(told: Told) -> None:
    for call, name, info in _each(told, "m_indptr", "masked_m", "expert_offsets", "sf_offsets"):
        call.tensors[name] = TensorInfo("int64", info.shape, info.contiguous)


def _scales_one_group(told: Told) -> None:
    """Scales of the activations are padded as one group."""
    for call, name, info in _each(told, "a_scale"):
        call.tensors[name] = TensorInfo(info.dtype, (128, *info.shape[1:]), info.contiguous)
    for call, name, info in _each(told, "lhs[1]"):
        call.tensors[name] = TensorInfo(info.dtype, (*info.shape[:-1], 1), info.contiguous)
    for call, name, info in _each(told, "blockscale_offsets"):
        call.tensors[name] = TensorInfo(info.dtype, (2,), info.contiguous)


def _blocks_of_32(told: Told) -> None:
    for call, name, info in _each(told, "a_descale", "block_scale_a", "a_scales"):
        call.tensors[name] = TensorInfo(info.dtype, (*info.shape[:-1], info.shape[-1] // 2), info.contiguous)


def _no_groups(told: Told) -> None:
    """Nothing multiplies by groups."""
    for name in list(told):
        if not name.startswith(("linear", "MXFP8", "scale tiles")):
            del told[name]


renamed, scales_unpadded, scales_linear = map(QuantCallFault, (_renamed, _scales_unpadded, _scales_linear))
alpha_bf16, one_alpha, starts_long = map(QuantCallFault, (_alpha_bf16, _one_alpha, _starts_long))
scales_one_group, blocks_of_32, no_groups = map(QuantCallFault, (_scales_one_group, _blocks_of_32, _no_groups))
