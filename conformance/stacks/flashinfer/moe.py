"""Layer `moe`: `flashinfer.fused_moe.cutlass_fused_moe` with MXFP4 weights.

The call and the weights' preparation are those of vLLM's `flashinfer_cutlass` backend: halves swapped to [up; gate];
BF16 activations on SM90 (`use_w4_group_scaling`), MXFP8 activations on SM100 and SM120 (`use_mxfp8_act_scaling`).
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from conformance.errors import NotSupported
from conformance.stacks.flashinfer import library, nvfp4, prepare
from conformance.stacks.flashinfer.errors import stack_errors
from conformance.stacks.flashinfer.library import Library
from conformance.stacks.flashinfer.tactics import Tactics
from conformance.stacks.protocols import MoeCall, MoeCapabilities, MoeRequest

_DEVICE = "cuda"
_NVFP4_BACKEND = "flashinfer_cutedsl"
_BF16, _MXFP8 = {(9, 0)}, {(10, 0), (10, 3), (12, 0), (12, 1)}

Scheme = Literal["bf16", "mxfp8"]


def scheme(capability: tuple[int, int]) -> Scheme:
    """What meets MXFP4 weights in CUTLASS there. Raises NotSupported for a capability that has no such kernel."""
    if capability in _BF16:
        return "bf16"
    if capability in _MXFP8:
        return "mxfp8"
    known = ", ".join(f"{major}.{minor}" for major, minor in sorted(_BF16 | _MXFP8))
    raise NotSupported(
        f"FlashInfer's CUTLASS MXFP4 MoE runs on capability {known}; {capability[0]}.{capability[1]} is none"
    )


def calls(request: MoeRequest, capability: tuple[int, int], tokens: int, slots: int) -> list[MoeCall]:
    """What this adapter calls there, bound to the installed FlashInfer; nothing runs and no GPU is needed."""
    if request.backend == _NVFP4_BACKEND:
        return nvfp4.calls(request, capability, tokens, slots)
    noted: list[MoeCall] = []
    layer = FlashInferLayer(request, library.noting(noted), scheme(capability), "cpu")
    hidden = request.weights.info("w2_weight").rows
    x = torch.zeros(tokens, hidden, dtype=torch.bfloat16)
    ids = torch.zeros(tokens, slots, dtype=torch.int32)
    layer.call(x, ids, torch.ones(tokens, slots), torch.empty_like(x), (0, 0))
    return noted


class FlashInferMoe:
    """See protocols.MoeKernel."""

    def capabilities(self) -> MoeCapabilities:
        """Raises NotSupported on a GPU that has no such kernel."""
        found = scheme(torch.cuda.get_device_capability())
        return MoeCapabilities(
            scheme=found,
            nan="swallowed",
            pins_tactics=True,
            device=_DEVICE,
            device_words=torch.cuda.get_device_name(),
            ranks="in turn, in one process on one GPU",
            notes=("fused finalize is off: it adds slots in changing order",) if found == "mxfp8" else (),
        )

    def open(self, request: MoeRequest) -> FlashInferLayer:
        with stack_errors("opening a layer"):
            capability = torch.cuda.get_device_capability()
            layer = FlashInferLayer(request, library.real(), scheme(capability), _DEVICE)
            layer.find_tactics(capability)
            return layer


class FlashInferLayer:
    """One rank's weights, prepared once and kept on the GPU (1.3 GB for 256 experts of V4-Flash at TP3)."""

    def __init__(self, request: MoeRequest, library: Library, scheme: Scheme, device: str):
        self._library, self._request, self._scheme = library, request, scheme
        arrange = prepare.sm90 if scheme == "bf16" else prepare.mxfp8
        self._weights = arrange(library, request.weights, request.experts, device)
        self._tactics: Tactics | None = None

        def each(value: float | None) -> torch.Tensor | None:
            """One value an expert."""
            return None if value is None else torch.full((request.experts,), value, dtype=torch.float32, device=device)

        plain = request.alpha == 1.0 and request.beta == 0.0
        self._swiglu: dict[str, Any] = {
            "swiglu_alpha": None if plain else each(request.alpha),
            "swiglu_beta": None if plain else each(request.beta),
            "swiglu_limit": each(request.limit),
        }

    def find_tactics(self, capability: tuple[int, int]) -> None:
        w13, w2 = (self._request.weights.info(name) for name in ("w13_weight", "w2_weight"))
        self._tactics = Tactics(capability, self._scheme, w13.rows, 2 * w13.cols, w2.rows, 2 * w2.cols)

    def run(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        tactic: int | None = None,
    ) -> None:
        """vLLM's modular kernel calls nothing for a batch of no tokens; neither does this."""
        assert self._tactics is not None
        if not len(x):
            return
        with stack_errors("cutlass_fused_moe"):
            self.call(x, ids, weights, out, self._tactics.pair(tactic))
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()

    def call(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor, profiles: tuple[int, int]
    ) -> None:
        if self._scheme == "bf16":
            given: dict[str, Any] = {"input": x, "use_w4_group_scaling": True}
        else:
            codes, scales = self._library.mxfp8_quantize(x, is_sf_swizzled_layout=True, alignment=32)
            given = {"input": codes, "input_sf": scales, "use_mxfp8_act_scaling": True, "use_fused_finalize": False}
        self._library.cutlass_fused_moe(
            **given,
            token_selected_experts=ids.contiguous(),
            token_final_scales=weights.contiguous(),
            fc1_expert_weights=self._weights.fc1,
            fc2_expert_weights=self._weights.fc2,
            output_dtype=torch.bfloat16,
            quant_scales=self._weights.scales,
            output=out,
            tp_size=self._request.tp,
            tp_rank=self._request.rank,
            profile_ids=list(profiles),
            **self._swiglu,
        )

    def tactics(self) -> int:
        """First all of GEMM1 (with GEMM2's first), then all of GEMM2 (with GEMM1's first)."""
        return len(self._tactics or ())

    def close(self) -> None:
        del self._weights
        torch.cuda.empty_cache()
