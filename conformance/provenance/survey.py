"""One parameter on every rank by digit passes, two experts: what `conformance map` shows."""

from __future__ import annotations

import msgspec

from conformance.context import due_map
from conformance.provenance.boxes import ProvenanceMap
from conformance.provenance.trace import trace
from conformance.stacks.protocols import SHARDS, ShardLoader
from conformance.target import Target

_EXPERTS = 2


def survey(loader: ShardLoader, target: Target, parameter: str) -> tuple[list[ProvenanceMap], list[ProvenanceMap]]:
    """(measured, due) maps by rank. Raises the StackError that building or loading raised."""
    found, due = [], []
    experts = min(_EXPERTS, target.geometry.experts)
    for rank in range(target.tp):
        layer = loader.open_experts(target.experts_request(rank, experts))
        try:
            shape = target.geometry.checkpoint_shape(parameter)
            due.append(due_map(target, rank, parameter, layer.info.parameters[parameter], experts))
            seen = trace(layer, parameter, rank, SHARDS[parameter], shape, list(range(experts)))
            found.append(msgspec.structs.replace(seen, traced=[]))
        finally:
            layer.close()
    return found, due
