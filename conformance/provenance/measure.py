"""Measure one parameter: the fingerprint of every expert decides; digit passes explain, where it differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from conformance.provenance import fingerprint
from conformance.provenance.boxes import ProvenanceMap, differences
from conformance.provenance.trace import trace

if TYPE_CHECKING:
    from conformance.stacks.protocols import ExpertsLayer

#: Experts that digit passes number on a difference: enough to see a shift between neighbours.
_TRACED = 3


def measure(
    layer: ExpertsLayer,
    expected: ProvenanceMap,
    shards: tuple[str, ...],
    shape: tuple[int, int],
    seed: int,
) -> ProvenanceMap:
    """What the loader did, as a map of all experts (fingerprint agrees) or of the traced ones (it does not).

    `expected` covers all experts with SOURCE and ZERO boxes; `shape` is the checkpoint tensor's (rows, bytes).
    Raises what the layer raises.
    """
    experts = expected.shape[0]
    windows = fingerprint.Windows(layer, shape, shards, experts, seed)
    fingerprint.load_all(layer, expected.parameter, windows, shards, experts)
    tails, wrong = fingerprint.verify(layer, expected, windows)
    if not wrong:
        return fingerprint.seen(expected, tails)
    traced = trace(layer, expected.parameter, expected.rank, shards, shape, to_trace(wrong, experts))
    due = fingerprint.seen(expected, tails).of_experts(traced.covered)
    return msgspec.structs.replace(
        traced,
        shape=expected.shape,
        method=f"fingerprint of {experts} experts ({len(wrong)} differ), then digit passes",
        differing=wrong,
        unexplained=not differences(due, traced),
    )


def to_trace(wrong: list[int], experts: int) -> list[int]:
    """Expert 0 (so that all ranks share one), the first that differs with its neighbours after it, and the last."""
    first = min(wrong[0], max(0, experts - _TRACED))
    return sorted({0, *range(first, min(first + _TRACED, experts)), wrong[0], wrong[-1]})
