"""Layer `attention`: DeepSeek-V4's hyper-connections, n residual streams that are mixed round every block.

`references/v4_hyper.py` has the formulas. Sums and mixes are float32; streams, a block's input and its output BF16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    import torch


class Mixing(NamedTuple):
    """`fn` ((2 + n) n, n H) float32, `scale` (3,), `base` ((2 + n) n,); of the head: (n, n H), (1,), (n,). `rms_eps`
    goes into the mean of squares, `eps` into the mixes; `rounds` of rows and columns, columns last."""

    fn: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor
    rms_eps: float
    eps: float
    rounds: int = 20


class HyperCapabilities(msgspec.Struct, frozen=True):
    """`accumulation`: relative to the sum of |x fn|, how far a mix may be off before its scale. `weights`: what `enter`
    makes of fn: `tf32` rounds it to the nearest, for tensor cores (the head's mixes are always float32)."""

    runs: str
    device: str = "cpu"
    hidden: int = 512
    accumulation: float = 2.0**-20
    weights: Literal["float32", "tf32"] = "float32"
    notes: tuple[str, ...] = ()


class HyperConnections(Protocol):
    """A stack may offer `hyper()`."""

    def capabilities(self) -> HyperCapabilities: ...

    def enter(self, streams: torch.Tensor, mixing: Mixing) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """streams (T, n, H) -> the block's input (T, H), post (T, n) and comb (T, n, n) float32, old stream first."""

    def leave(self, y: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
        """The block's output (T, H) and the old streams -> new streams (T, n, H)."""

    def head(self, streams: torch.Tensor, mixing: Mixing) -> torch.Tensor:
        """The last collapse -> (T, H)."""
