"""vLLM's hyper-connections in a worker that is vLLM's own platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from conformance.stacks.hyper_protocol import HyperCapabilities, Mixing

if TYPE_CHECKING:
    from conformance.stacks.vllm.stack import VllmWorker


class VllmHyper:
    """See hyper_protocol.HyperConnections."""

    def __init__(self, worker: VllmWorker) -> None:
        """Raises NotSupported for a vLLM, or a platform of it, without them."""
        self._worker = worker
        self._told = worker.call("describe_hyper")

    def capabilities(self) -> HyperCapabilities:
        return HyperCapabilities(
            self._told["runs"],
            self._told["device"],
            weights=self._told["weights"],
            notes=("a batch of no tokens is answered with nothing, as vLLM's own layers are never called for one",),
        )

    def _call(self, method: str, *arguments: Any) -> Any:
        from conformance.stacks.libraries.worker import packing

        return packing.unpacked(self._worker.call("hyper", method=method, arguments=packing.packed(list(arguments))))

    def enter(self, streams: torch.Tensor, mixing: Mixing) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not len(streams):
            n = streams.shape[1]
            return streams[:, 0], streams.new_empty(0, n).float(), streams.new_empty(0, n, n).float()
        x, post, comb = self._call("enter", streams, *mixing)
        return x, post, comb

    def leave(self, y: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
        if not len(streams):
            return streams
        made: torch.Tensor = self._call("leave", y, streams, post, comb)
        return made

    def head(self, streams: torch.Tensor, mixing: Mixing) -> torch.Tensor:
        if not len(streams):
            return streams[:, 0]
        made: torch.Tensor = self._call("head", streams, *mixing)
        return made
