"""Layer `moe`, before any kernel runs: loaded parameters turned into what the kernel reads.

A stack that can do so without a GPU offers it as `preparation()`, beside `loader()`. Parameters go by the names and
byte shapes of `protocols.SHARDS`; one layer of a few experts is opened and used again and again, so that any number of
experts streams through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from conformance.stacks.protocols import ParameterInfo

if TYPE_CHECKING:
    import torch

    from conformance.geometry import Geometry


class PrepareRequest(msgspec.Struct, frozen=True):
    """One rank's routed experts, `experts` at a time. `share`: elements of the intermediate axis that a rank gets;
    the stack rounds them up by itself."""

    geometry: Geometry
    tp: int
    rank: int
    backend: str
    capability: tuple[int, int] | None
    experts: int
    share: int


class PrepareInfo(msgspec.Struct):
    """`kernel`: the stack's name of what it prepares for; `scheme`: what that multiplies MXFP4 weights with.

    `loaded`: the parameters as the loader leaves them. `helpers` says whose code rearranged them,
    `device` where it ran.
    """

    kernel: str
    scheme: str
    loaded: dict[str, ParameterInfo]
    helpers: str = ""
    device: str = "a CPU"
    notes: list[str] = []


class Form(msgspec.Struct, frozen=True):
    """A tensor without its values. `dtype` is torch's name: `uint8`."""

    shape: tuple[int, ...]
    dtype: str
    contiguous: bool = True

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}" + ("" if self.contiguous else ", not contiguous")


class Prepared(NamedTuple):
    """`data` (experts, bytes): the parameter in memory order, whatever its form."""

    data: torch.Tensor
    form: Form


class PreparedLayer(Protocol):
    info: PrepareInfo

    def convert(self, loaded: dict[str, torch.Tensor]) -> dict[str, Prepared]:
        """{parameter: uint8 (experts, rows, cols)} as loaded -> as the kernel is given it; valid until the next call.
        Raises StackRefused with the stack's own words, NotSupported where that takes a GPU."""

    def close(self) -> None: ...


class Preparation(Protocol):
    def open(self, request: PrepareRequest) -> PreparedLayer:
        """Raises StackRefused (the stack's validation), NotSupported, AdapterError, StackCrashed, StackTimeout."""
