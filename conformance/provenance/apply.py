"""Apply recorded ProvenanceMaps to a checkpoint: one rank's parameters, byte for byte as its loader leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.provenance.boxes import ProvenanceMap, Span, State
from conformance.stacks.protocols import ParameterInfo

if TYPE_CHECKING:
    import torch

    from conformance.provenance.checkpoint import Checkpoint

#: What stands where nothing was written, or nobody knows what: codes 6.0 and 6.0; as a scale 2^-8.
STALE = 0x77


class AppliedWeights:
    """LoadedWeights of one rank. `zero_at_start`: parameters whose unwritten bytes are zeros since construction.

    A map that was traced covers some experts only; the others are taken to be loaded like the traced one before them.
    """

    def __init__(
        self,
        maps: dict[str, ProvenanceMap],
        checkpoint: Checkpoint,
        zero_at_start: frozenset[str],
        stale: int = STALE,
    ):
        self._maps, self._checkpoint, self._zero_at_start, self._stale = maps, checkpoint, zero_at_start, stale

    def info(self, parameter: str) -> ParameterInfo:
        _, rows, cols = self._maps[parameter].shape
        return ParameterInfo(rows, cols, "uint8")

    def read(self, parameter: str, first: int, last: int, device: str = "cpu") -> torch.Tensor:
        import torch

        info, seen = self.info(parameter), self._maps[parameter]
        out = torch.full((last - first, info.rows, info.cols), self._stale, dtype=torch.uint8, device=device)
        if not seen.traced:
            self._fill(out, parameter, first, 0, device)
            return out
        for expert in range(first, last):
            like = max(e for e in seen.covered if e <= expert)
            self._fill(out[expert - first : expert - first + 1], parameter, like, expert - like, device)
        return out

    def _fill(self, out: torch.Tensor, parameter: str, like: int, further: int, device: str) -> None:
        """Fill `out` as the map has the experts from `like` on, out of sources `further` experts on."""
        from conformance.provenance.checkpoint import blocks

        for box in self._maps[parameter].boxes:
            experts = box.experts & Span(like, like + len(out))
            if not experts:
                continue
            target = out[experts.start - like : experts.stop - like, box.rows.start : box.rows.stop]
            target = target[:, :, box.cols.start : box.cols.stop]
            origin = box.at(experts.start, box.rows.start, box.cols.start)
            if origin is not None:
                source = Span(origin.expert + further, origin.expert + further + len(experts))
                rows, cols = Span(origin.row, origin.row + len(box.rows)), Span(origin.col, origin.col + len(box.cols))
                rule = self._checkpoint.rule(parameter, origin.shard)
                target.copy_(blocks(rule, source, rows, cols, device))
            elif box.state is State.ZERO or (box.state is State.UNTOUCHED and parameter in self._zero_at_start):
                target.zero_()
