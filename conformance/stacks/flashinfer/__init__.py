"""The `flashinfer` stack: CUTLASS MXFP4 MoE kernels, as vLLM's `flashinfer_cutlass` backend calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.stacks.flashinfer.stack import FlashInferStack
    from conformance.stacks.protocols import StackOptions


def open_stack(options: StackOptions) -> FlashInferStack:
    """Lazy: imports neither torch nor flashinfer."""
    from conformance.stacks.flashinfer.stack import FlashInferStack

    return FlashInferStack(options)
