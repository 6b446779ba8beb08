"""vLLM's own NVFP4 quantiser on a GPU, in the worker that sees it. Written, and run nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from conformance.errors import NotSupported
from conformance.stacks.quant_protocol import Format, QuantCapabilities, Quantized

if TYPE_CHECKING:
    from conformance.stacks.vllm.stack import VllmWorker


class VllmGpuQuantizer:
    """Only what `offers` names is called."""

    device = "cuda"

    def __init__(self, worker: VllmWorker) -> None:
        """Raises NotSupported below SM100."""
        self._worker = worker
        self._runs = worker.call("describe_quantiser")["runs"]

    def capabilities(self) -> QuantCapabilities:
        return QuantCapabilities(
            offers=frozenset({"nvfp4.quantize"}), runs=self._runs, device="cuda", inputs=("bfloat16", "float16")
        )

    def quantize(self, format: Format, x: torch.Tensor, global_scale: float | None = None) -> Quantized:
        from conformance.stacks.libraries.worker import packing

        if global_scale is None:
            raise NotSupported("vLLM's callers bring their own global scale")
        told = self._worker.call("quantise", arguments=packing.packed([x, global_scale]))
        codes, scales = packing.unpacked(told)
        return Quantized(codes, scales, global_scale, "128x4")
