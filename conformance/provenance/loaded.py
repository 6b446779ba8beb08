"""The maps of the loader that a kernel's weights come from: this run's, an earlier run's, or the reference's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from conformance import expected
from conformance.provenance.apply import STALE, AppliedWeights
from conformance.provenance.boxes import ProvenanceMap
from conformance.result import ClaimResult, Status
from conformance.stacks.protocols import SHARDS, ParameterInfo
from references import plan

if TYPE_CHECKING:
    from conformance.provenance.checkpoint import Checkpoint
    from conformance.target import Target

#: parameter -> the claims that carry its maps and judge its tails
_CLAIMS = {
    "w13_weight": "loader.w13",
    "w13_weight_scale": "loader.w13_scale",
    "w2_weight": "loader.w2",
    "w2_weight_scale": "loader.w2_scale",
}


class LoadedMaps(msgspec.Struct, frozen=True):
    """`maps`: parameter -> one map a rank. `origin` says, in words, whose loader it was."""

    maps: dict[str, list[ProvenanceMap]]
    origin: str
    zero_at_start: frozenset[str] = frozenset()

    @property
    def ranks(self) -> int:
        return len(self.maps["w2_weight"])

    def weights(self, rank: int, checkpoint: Checkpoint, stale: int = STALE) -> AppliedWeights:
        """`stale` stands where nothing was written."""
        maps = {name: ranks[rank] for name, ranks in self.maps.items()}
        return AppliedWeights(maps, checkpoint, self.zero_at_start, stale)


def due(target: Target, tp: int | None = None) -> LoadedMaps:
    """The reference's right maps, in the kernel width that the profile's data knows for the backend."""
    g, tp = target.geometry, tp or target.tp
    per_rank = plan.routed_intermediate(g.intermediate, tp).per_rank
    width = plan.kernel_width(per_rank, target.intermediate_roundings[0])
    hidden = plan.kernel_width(g.hidden_size, target.hidden_roundings[0])
    infos = {
        "w13_weight": ParameterInfo(2 * width, hidden // 2, "uint8"),
        "w13_weight_scale": ParameterInfo(2 * width, hidden // 32, "uint8"),
        "w2_weight": ParameterInfo(hidden, width // 2, "uint8"),
        "w2_weight_scale": ParameterInfo(hidden, width // 32, "uint8"),
    }
    maps = {
        name: [expected.experts_map(g, tp, rank, name, infos[name], g.experts) for rank in range(tp)] for name in SHARDS
    }
    return LoadedMaps(maps, "the reference's right map: no loader was measured")


def recorded(results: Iterable[ClaimResult], words: str) -> LoadedMaps | None:
    """The maps that the claims loader.*.offsets carry; None unless all four parameters are there.

    Bytes that the loader never wrote count as zeros where loader.*.tails passed: they are so since construction.
    """
    by_id = {result.id: result for result in results}
    maps = {}
    for parameter, claim in _CLAIMS.items():
        result = by_id.get(f"{claim}.offsets")
        if result is None or result.evidence is None or not result.evidence.maps:
            return None
        maps[parameter] = result.evidence.maps
    passed = (n for n, claim in _CLAIMS.items() if (r := by_id.get(f"{claim}.tails")) and r.status is Status.PASS)
    return LoadedMaps(maps, words, frozenset(passed))
