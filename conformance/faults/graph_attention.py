"""Faults of captured attention decode, and of a captured decoder layer."""

from __future__ import annotations

from conformance.faults import graph_steps
from conformance.faults.graph import _behind, _frozen
from conformance.faults.graphs import GraphFault, Replay
from conformance.stacks.graph_protocol import AttendBuffers


def _longest_of_capture(r: Replay) -> None:
    """No row counts more tokens than the longest of the first replay."""
    lengths = r.buffers.window_lengths
    given = lengths.clone()
    lengths.clamp_(max=int(r.kept.setdefault("longest", given.max().clone())))
    r.inner()
    lengths.copy_(given)


def _pages_left(r: Replay) -> None:
    """The first request is looked for where its first replay had it."""
    slots = r.buffers.window_slots
    given = slots.clone()
    slots[0].copy_(r.kept.setdefault("slots", given[0].clone()))
    r.inner()
    slots.copy_(given)


def _empty_nan(r: Replay) -> None:
    """A request of length 0 divides by nothing."""
    r.inner()
    empty = (r.buffers.window_lengths == 0) & (r.buffers.entries_lengths == 0)
    r.buffers.out[empty] = float("nan")


def _counters_kept(r: Replay) -> None:
    """A split counter that no replay resets: every third result is scaled."""
    r.inner()
    if r.number % 3 == 2:
        r.buffers.out[0] *= 1 + 2.0**-7


def _workspace_shared(r: Replay) -> None:
    """Partial results lie over the output of the other graphs in the pool."""
    r.inner()
    for other in r.others:
        other.out[:1].copy_(r.buffers.out[:1])


def _cache_scratched(r: Replay) -> None:
    """Scratch memory lies over the cache of the other graphs in the pool."""
    r.inner()
    for other in r.others:
        other.entries[0].zero_()


def _reads_freed(r: Replay) -> None:
    """The split plan lies in memory that was freed after capture."""
    r.inner()
    if r.disturbed:
        r.buffers.out[-1].fill_(float("nan"))


def _behind_output(b: AttendBuffers) -> None:
    _behind(b.out, 64).zero_()


def _zeroes_cache(b: AttendBuffers) -> None:
    """Warm-up zeroes the last page of a cache."""
    b.window[-1].zero_()


frozen = {name: _frozen(name) for name in AttendBuffers._fields if name != "out"}
length_read = GraphFault(step=graph_steps.length_read)
longest_of_capture = GraphFault(replay=_longest_of_capture)
pages_left = GraphFault(replay=_pages_left)
empty_nan = GraphFault(replay=_empty_nan)
tile_spread = GraphFault(step=graph_steps.tile_spread)
stale_rows = GraphFault(step=graph_steps.stale_rows)
counters_kept = GraphFault(replay=_counters_kept)
workspace_shared = GraphFault(replay=_workspace_shared)
cache_scratched = GraphFault(replay=_cache_scratched)
reads_freed = GraphFault(replay=_reads_freed)
takes_memory = GraphFault(takes=512)
behind_output = GraphFault(warmed=_behind_output)
sinks_consumed = GraphFault(step=graph_steps.sinks_consumed)
zeroes_cache = GraphFault(warmed=_zeroes_cache)
frozen_positions = _frozen("positions")
frozen_routes = _frozen("ids")
