"""Which loader the MoE kernel's weights come from: an earlier run's, this run's, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.errors import UsageError
from conformance.gate.folder import read_evidence
from conformance.gate.settings import Resolved
from conformance.result import ClaimResult

if TYPE_CHECKING:
    from conformance.context import Context
    from conformance.provenance.loaded import LoadedMaps


def maps(run: Resolved, results: Mapping[str, ClaimResult], context: Callable[[str], Context]) -> LoadedMaps:
    """`--loader-run` first, then what this run's loader layer has recorded, then its loader measured now; where the
    loader layer is out of scope, the reference's right maps. `context` opens a stack's context by name.

    Raises UsageError for a run folder that does not hold fitting maps, StackError where the loader cannot be measured.
    """
    from conformance.provenance import loaded

    if run.settings.loader_run:
        return of_run(run, Path(run.settings.loader_run))
    stack = run.stacks.get("loader")
    if stack is None:
        return loaded.due(run.target)
    words = f"the loader of stack {stack}, measured in this run"
    return loaded.recorded(results.values(), words) or context(stack).measured_maps(words)


def of_run(run: Resolved, path: Path) -> LoadedMaps:
    """The maps that an earlier run recorded. Raises UsageError if there are none, or if they are of another model."""
    from conformance.provenance import loaded

    stack = next((r.evidence.stack for r in read_evidence(path) if r.evidence and r.layer == "loader"), "")
    found = loaded.recorded(read_evidence(path), f"the loader of stack {stack}, measured in run {path.name}")
    if found is None:
        raise UsageError(f"--loader-run {path}: no maps of all four parameters in it (claims loader.*.offsets)")
    if found.ranks != run.target.tp:
        raise UsageError(f"--loader-run {path}: maps of {found.ranks} ranks, --tp is {run.target.tp}")
    g = run.target.geometry
    held = found.maps["w2_weight"][0].shape
    if held[0] != g.experts or held[1] < g.hidden_size:
        raise UsageError(f"--loader-run {path}: maps of shape {held} are not those of {g.name}")
    return found
