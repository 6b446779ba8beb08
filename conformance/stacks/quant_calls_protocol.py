"""What an adapter would call to quantise, and to multiply what is quantised, on an absent GPU. Nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from conformance.stacks.protocols import MoeCall


class QuantCallRequest(NamedTuple):
    """A linear layer x (tokens, K) W (N, K)^T; groups of `sizes` rows against experts (E, N, K); a MoE layer of E
    experts, hidden size K, intermediate size I, `slots` experts a token. All in NVFP4, x in BF16."""

    capability: tuple[int, int]
    tokens: int = 5
    n: int = 224
    k: int = 384
    sizes: tuple[int, ...] = (8, 0, 4)
    intermediate: int = 256
    slots: int = 2

    @property
    def experts(self) -> int:
        return len(self.sizes)


class QuantCalls(Protocol):
    """A stack may offer `quant_calls`."""

    def __call__(self, request: QuantCallRequest) -> dict[str, list[MoeCall]]:
        """Calls in order, bound by name to the library as installed, by what they are for: a name of
        suites/quant/calls_due.py. Raises StackMissing where the library is not installed, NotSupported for a capability
        that it has no NVFP4 for."""
