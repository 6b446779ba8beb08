"""Layer `moe`: what the stack's own selection code gives, per CUDA capability, asked for a backend and left alone.

A stack that has such code offers it as `selection()`, beside `planner()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from conformance.geometry import Geometry

#: The name that asks for nothing.
UNASKED = "auto"


class Choice(msgspec.Struct, frozen=True):
    """`backend`: the stack's own name of its choice, empty if it refuses (`refused` has its words). `family`: the name
    that asks for it. `scheme`: what it multiplies MXFP4 weights with. `lacking`: what of this installation was missing
    when it was asked: then nothing is known."""

    capability: tuple[int, int]
    asked: str
    backend: str = ""
    family: str = ""
    scheme: str = ""
    refused: str = ""
    lacking: str = ""


class SelectionRequest(msgspec.Struct, frozen=True):
    """`share`: elements of the intermediate axis that a rank gets. Kernel packages are taken as installed."""

    geometry: Geometry
    tp: int
    share: int
    capabilities: tuple[tuple[int, int], ...]


class Selection(Protocol):
    def choices(self, request: SelectionRequest) -> list[Choice]:
        """For every capability: `auto`, then each name that the stack knows."""
