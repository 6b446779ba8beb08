"""Maps as tables like the audit's: source slice, destination, zero tail, one row a rank."""

from __future__ import annotations

from rich.table import Table

from conformance.provenance.axis import Axis
from conformance.provenance.boxes import ProvenanceMap, State
from conformance.provenance.picture import Run, runs

_TAILS = {State.ZERO: "zero", State.UNTOUCHED: "untouched", State.UNKNOWN: "unknown bytes"}
_MOST = 6


def tables(maps: list[ProvenanceMap]) -> list[Table]:
    """One table a shard (W1, W3, W2) over all ranks' maps of one parameter."""
    axis = Axis(maps[0].parameter)
    return [_table(axis, index, name, maps) for index, name in enumerate(axis.shards)]


def _table(axis: Axis, index: int, name: str, maps: list[ProvenanceMap]) -> Table:
    table = Table(title=f"{name} in {axis.parameter}, in {axis.unit}s", title_justify="left", box=None, padding=(0, 2))
    for heading in ("rank", "checkpoint", "destination", "tail"):
        table.add_column(heading)
    for loaded in maps:
        found = runs(loaded, index)
        sources = [run for run in found if run.source]
        others = [run for run in found if not run.source]
        table.add_row(
            str(loaded.rank),
            _listed([f"{run.shard + ' ' if run.shard != name else ''}{run.source}" for run in sources]) or "nothing",
            _listed([str(run.place) for run in sources]),
            _listed([_tail(run) for run in others]) or "none",
        )
    return table


def _tail(run: Run) -> str:
    return f"{len(run.place)} {_TAILS[run.state]}"


def _listed(words: list[str]) -> str:
    return ", ".join(words[:_MOST]) + (f" and {len(words) - _MOST} more" if len(words) > _MOST else "")
