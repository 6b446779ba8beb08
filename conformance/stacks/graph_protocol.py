"""Layer `graph`: a stack's call captured once and replayed over static buffers.

A stack that captures its MoE kernel offers a GraphRunner as `graph()`, of its attention decode one as
`attention_graph()`, of a decoder layer one as `layer_graph()`. The check owns the buffers, so that it can poison them,
put canaries round them, and refill them between replays. Buffers are a NamedTuple: its first field has a row for each
token, its last is `out`, which alone is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from conformance.stacks.attention_protocol import OutputRequest
    from conformance.stacks.protocols import MoeRequest


#: A call over its buffers.
Step: TypeAlias = "Callable[[Any], None]"


class Buffers(NamedTuple):
    """x (M, H) bfloat16, ids (M, k) int32, weights (M, k) float32, out (M, H) of the kernel's output type."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor


class AttendBuffers(NamedTuple):
    """One decode call over two paged caches; see attention_protocol.AttendCall for the shapes and what they hold.

    q (T, P, D) bfloat16, sinks (P,) float32; `window` and `entries` (pages, bytes of a page) uint8, their slots (T, K)
    and how many of each row count, (T,) int32: the slots behind are stale. out (T, P, D) bfloat16.
    """

    q: torch.Tensor
    sinks: torch.Tensor
    window: torch.Tensor
    window_slots: torch.Tensor
    window_lengths: torch.Tensor
    entries: torch.Tensor
    entries_slots: torch.Tensor
    entries_lengths: torch.Tensor
    out: torch.Tensor


class LayerBuffers(NamedTuple):
    """AttendBuffers without its output, then positions (T,) int64 for the output projection, ids and weights (T, k) for
    the routed experts, whose tokens are the projection's output; out (T, H)."""

    q: torch.Tensor
    sinks: torch.Tensor
    window: torch.Tensor
    window_slots: torch.Tensor
    window_lengths: torch.Tensor
    entries: torch.Tensor
    entries_slots: torch.Tensor
    entries_lengths: torch.Tensor
    positions: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor


class AttendRequest(NamedTuple):
    """What of a decode call is no buffer: D^-0.5, and how many tokens (entries) a page of each cache holds."""

    rank: int
    scale: float
    window_tokens: int
    entries_tokens: int


class LayerRequest(NamedTuple):
    """Attention decode, its output projection, and the routed experts on what that gives."""

    rank: int
    attend: AttendRequest
    output: OutputRequest
    moe: MoeRequest


class Captured(Protocol):
    """One graph over the buffers that it was captured with. `incidents`: what capture did that a graph cannot hold (a
    host sync, a copy from host memory), in words."""

    incidents: tuple[str, ...]

    def replay(self) -> None:
        """Returns when the output is there."""

    def close(self) -> None: ...


class GraphedLayer(Protocol):
    """One rank's call, its weights prepared. Tactics are pinned where the kernel pins any."""

    def change(self, wrap: Callable[[Step], Step]) -> None:
        """Replace what is captured, and what `eager` calls, by what `wrap` makes of it: an all-reduce behind it, a
        planted fault. Raises NotSupported where the call is made in another process that does not know `wrap`."""

    def eager(self, buffers: Any) -> None: ...

    def warm_up(self, buffers: Any) -> None:
        """What the stack does before it captures these buffers."""

    def pool(self) -> Any:
        """Memory that several graphs may share."""

    def capture(self, buffers: Any, pool: Any = None) -> Captured:
        """On a side stream where there are streams. Raises StackRefused where it cannot be captured, with the words."""

    def held(self) -> int:
        """Bytes of device memory that are taken now."""

    def disturb(self) -> None:
        """Other work: take memory, poison it, give it back."""

    def close(self) -> None: ...


class GraphRunner(Protocol):
    """`sizes`: batch sizes that the stack captures, ascending. `words`: how graphs are made here. A runner whose stack
    captures more of them offers `every_size()`, all of them (by night): what is opened after that takes the largest.

    `graph()` is opened with a MoeRequest, `attention_graph()` with an AttendRequest, `layer_graph()` with a
    LayerRequest.
    """

    sizes: tuple[int, ...]
    words: str

    def open(self, request: Any) -> GraphedLayer:
        """Raises StackRefused, NotSupported, AdapterError, StackCrashed."""
