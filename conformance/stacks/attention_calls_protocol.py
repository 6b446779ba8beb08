"""What an adapter would call for attention on a GPU that is not there. Nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from conformance.stacks.protocols import MoeCall

#: Keys of a query's window; of its compressed entries where there is a ratio. Both whole tiles of every kernel.
WINDOW, ENTRIES = 128, 64


class CallRequest(NamedTuple):
    """One decode of `tokens` requests with a rank's `heads` on a capability, over a window and, for `ratio` 4 or 128,
    compressed entries (0: none)."""

    heads: int
    tokens: int
    ratio: int
    capability: tuple[int, int]


class AttentionCalls(Protocol):
    """A stack may offer `attention_calls`."""

    def __call__(self, request: CallRequest) -> list[MoeCall]:
        """Calls in order, bound by name to the library as installed. Raises StackMissing where it is not installed,
        NotSupported for a capability that it has no kernel for."""
