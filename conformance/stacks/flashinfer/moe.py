"""Layer `moe`: `flashinfer.fused_moe.cutlass_fused_moe` with BF16 activations and MXFP4 weights on SM90.

The call and the weights' preparation are those of vLLM's `flashinfer_cutlass` backend: halves swapped to [up; gate],
weights and scales interleaved for the mixed-input GEMM, `use_w4_group_scaling`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.errors import NotSupported, StackCrashed, StackError, StackRefused
from conformance.stacks.flashinfer import prepare
from conformance.stacks.flashinfer.tactics import Tactics
from conformance.stacks.protocols import MoeCapabilities, MoeRequest

_SM90 = (9, 0)
_DEVICE = "cuda"


class FlashInferMoe:
    """See protocols.MoeKernel."""

    def capabilities(self) -> MoeCapabilities:
        """Raises NotSupported on a GPU whose path this adapter cannot drive."""
        capability = torch.cuda.get_device_capability(0)
        if capability != _SM90:
            raise NotSupported(
                f"this adapter drives FlashInfer's BF16 x MXFP4 MoE of capability 9.0 only; this GPU is "
                f"{capability[0]}.{capability[1]}, whose MXFP8 path is not written yet"
            )
        return MoeCapabilities(
            scheme="bf16",
            nan="swallowed",
            pins_tactics=True,
            device=_DEVICE,
            device_words=torch.cuda.get_device_name(0),
            ranks="in turn, in one process on one GPU",
        )

    def open(self, request: MoeRequest) -> FlashInferLayer:
        with _stack_errors("opening a layer"):
            return FlashInferLayer(request)


class FlashInferLayer:
    """One rank's weights, prepared once and kept on the GPU (1.3 GB for 256 experts of V4-Flash at TP3)."""

    def __init__(self, request: MoeRequest):
        import flashinfer.fused_moe

        self._call = flashinfer.fused_moe.cutlass_fused_moe
        self._request = request
        self._weights = prepare.sm90(request.weights, request.experts, _DEVICE)
        fc1, fc2 = self._weights.fc1, self._weights.fc2
        self._tactics = Tactics(fc1.shape[1], 2 * fc1.shape[2], fc2.shape[1], 2 * fc2.shape[2])

        def each(value: float | None) -> torch.Tensor | None:
            """One value an expert."""
            return None if value is None else torch.full((request.experts,), value, dtype=torch.float32, device=_DEVICE)

        plain = request.alpha == 1.0 and request.beta == 0.0
        self._swiglu: dict[str, Any] = {
            "swiglu_alpha": None if plain else each(request.alpha),
            "swiglu_beta": None if plain else each(request.beta),
            "swiglu_limit": each(request.limit),
        }

    def run(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        tactic: int | None = None,
    ) -> None:
        with _stack_errors("cutlass_fused_moe"):
            self._call(
                input=x,
                token_selected_experts=ids.contiguous(),
                token_final_scales=weights.contiguous(),
                fc1_expert_weights=self._weights.fc1,
                fc2_expert_weights=self._weights.fc2,
                output_dtype=torch.bfloat16,
                quant_scales=[self._weights.fc1_scale, self._weights.fc2_scale],
                output=out,
                tp_size=self._request.tp,
                tp_rank=self._request.rank,
                use_w4_group_scaling=True,
                profile_ids=list(self._tactics.pair(tactic)),
                **self._swiglu,
            )
            torch.cuda.synchronize()

    def tactics(self) -> int:
        """First all of GEMM1 (with GEMM2's first), then all of GEMM2 (with GEMM1's first)."""
        return len(self._tactics)

    def close(self) -> None:
        del self._weights
        torch.cuda.empty_cache()


@contextmanager
def _stack_errors(doing: str) -> Iterator[None]:
    """A device error is a crash of the stack; what else FlashInfer raises is its refusal."""
    try:
        yield
    except StackError:
        raise
    except Exception as error:
        words = f"{doing}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
        device = isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
        raise (StackCrashed if device else StackRefused)(words) from error
