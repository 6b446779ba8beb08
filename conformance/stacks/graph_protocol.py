"""Layer `graph`: a stack's call captured once and replayed over static buffers.

A stack that captures its MoE kernel offers a GraphRunner as `graph()`. The check owns the buffers, so that it can
poison them, put canaries round them, and refill them between replays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from conformance.stacks.protocols import MoeRequest


class Buffers(NamedTuple):
    """x (M, H) bfloat16, ids (M, k) int32, weights (M, k) float32, out (M, H) of the kernel's output type."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor


class Captured(Protocol):
    """One graph over the buffers that it was captured with. `incidents`: what capture did that a graph cannot hold (a
    host sync, a copy from host memory), in words."""

    incidents: tuple[str, ...]

    def replay(self) -> None:
        """Returns when the output is there."""

    def close(self) -> None: ...


class GraphedLayer(Protocol):
    """Prepared weights of one rank. `step` is what is captured and what `eager` calls; a planted fault may replace it.

    Tactics are pinned where the kernel pins any.
    """

    step: Any

    def eager(self, buffers: Buffers) -> None: ...

    def warm_up(self, buffers: Buffers) -> None:
        """What the stack does before it captures these buffers."""

    def pool(self) -> Any:
        """Memory that several graphs may share."""

    def capture(self, buffers: Buffers, pool: Any = None) -> Captured:
        """On a side stream where there are streams. Raises StackRefused where it cannot be captured, with the words."""

    def held(self) -> int:
        """Bytes of device memory that are taken now."""

    def disturb(self) -> None:
        """Other work: take memory, poison it, give it back."""

    def close(self) -> None: ...


class GraphRunner(Protocol):
    """`sizes`: the batch sizes that the stack captures, ascending. `words`: how graphs are made here."""

    sizes: tuple[int, ...]
    words: str

    def open(self, request: MoeRequest) -> GraphedLayer:
        """Raises StackRefused, NotSupported, AdapterError, StackCrashed."""
