"""Checks of one parameter over all ranks: offsets, tails, partition, and weights against their scales."""

from __future__ import annotations

from collections.abc import Iterable

from conformance import expected
from conformance.context import Context, Loaded
from conformance.provenance.axis import Axis
from conformance.provenance.boxes import Box, Difference, ProvenanceMap, Span, State, differences
from conformance.result import Evidence, Finding
from references import plan
from suites.loader import formula, ownership

_MOST = 12  # findings kept a claim; the counts tell the rest


def offsets(context: Context, parameter: str) -> Evidence:
    """Every logical destination byte holds the checkpoint byte due there (its position, not its expert or half)."""
    axis, tp = Axis(parameter), context.target.tp
    loads = [context.loaded(parameter, rank) for rank in context.ranks]
    findings = [_finding(axis, rank, d) for rank, loaded in enumerate(loads) for d in _logical(loaded) if _misplaced(d)]
    starts = _starts(axis, loads)
    used = _formula(context, axis, starts) if findings else ""
    unexplained = [f for rank, loaded in enumerate(loads) for f in _unexplained(axis, rank, loaded)]
    return Evidence(
        ok=not findings and not unexplained,
        summary=f"{parameter}: {axis.unit}s start at {_join(starts)} on ranks 0..{tp - 1}"
        + (f", {_join(_starts(axis, loads, due=True))} due; {used}" if findings else ""),
        expected={f"rank {rank}": _spans(axis, loaded.due) for rank, loaded in enumerate(loads)},
        measured={f"rank {rank}": _spans(axis, loaded.seen) for rank, loaded in enumerate(loads)},
        findings=(findings + unexplained)[:_MOST],
        notes=[f"{len(findings)} blocks differ"] if findings else [],
        method="; ".join(sorted({loaded.seen.method for loaded in loads})),
        seed=context.target.seed,
        maps=[loaded.seen for loaded in loads],
        due_maps=[loaded.due for loaded in loads],
    )


def tails(context: Context, parameter: str) -> Evidence:
    """Beyond the logical slice every byte is zero: written zero where the plan pads, else at least begun as zero."""
    axis = Axis(parameter)
    loads = [context.loaded(parameter, rank) for rank in context.ranks]
    findings: list[Finding] = []
    due_tails, got_tails = {}, {}
    for rank, loaded in enumerate(loads):
        for due in loaded.due.of_experts(loaded.seen.covered).boxes:
            for seen in loaded.seen.within(due.rows, due.cols) if due.state is State.ZERO else ():
                if seen.experts & due.experts and (problem := _tail_problem(context, loaded, seen)):
                    findings.append(_tail_finding(axis, rank, seen, problem))
        due_tails[f"rank {rank}"] = _tail_length(axis, loaded.due, loaded.seen.covered[0])
        got_tails[f"rank {rank}"] = _tail_length(axis, loaded.seen, loaded.seen.covered[0])
    zeros = "written zeros" if context.padded else "zeros"
    return Evidence(
        ok=not findings,
        summary=f"{parameter}: zero tails of {_join(got_tails.values())} {axis.unit}s, {_join(due_tails.values())} due"
        + (f"; {findings[0].got}, where {zeros} are due" if findings else f", all {zeros}"),
        expected=due_tails,
        measured=got_tails,
        findings=_first_experts_first(findings)[:_MOST],
        method="; ".join(sorted({loaded.seen.method for loaded in loads})),
        seed=context.target.seed,
    )


def partition(context: Context, parameter: str) -> Evidence:
    """The ranks' slices together are the checkpoint: every byte loaded once, none lost, none doubled."""
    axis = Axis(parameter)
    shape = context.geometry.checkpoint_shape(parameter)
    total = shape[0 if axis.by_rows else 1]
    loads = [context.loaded(parameter, rank) for rank in context.ranks]
    common = sorted(set.intersection(*(set(loaded.seen.covered) for loaded in loads)))
    findings: list[Finding] = []
    measured: dict[str, list[str]] = {}
    for expert in common:
        for shard in axis.shards:
            owned = [
                (run, rank) for rank, loaded in enumerate(loads) for _, run in axis.slices(loaded.seen, expert, shard)
            ]
            bytes_loaded = sum(_source_bytes(loaded, expert, shard) for loaded in loads)
            gaps = [(what, span) for what, span, _ in ownership.gaps(owned, total)]
            lost, doubled = ([s for what, s in gaps if what == kind] for kind in ("lost", "doubled"))
            measured.setdefault(shard, [f"rank {rank} {run}" for run, rank in sorted(owned)])
            for what, span in [
                *(("never loaded", s) for s in lost),
                *(("loaded more than once", s) for s in doubled),
            ]:
                findings.append(
                    Finding(
                        where=f"expert {expert}, checkpoint {shard} {axis.unit}s {span}",
                        expected="owned by exactly one rank",
                        got=what,
                        meaning=_elements(parameter, span),
                        expert=expert,
                    )
                )
            if not lost and not doubled and bytes_loaded != shape[0] * shape[1]:
                findings.append(
                    Finding(
                        where=f"expert {expert}, checkpoint {shard}",
                        expected=f"{shape[0] * shape[1]} bytes over all ranks",
                        got=f"{bytes_loaded} bytes",
                        meaning="some rows of the slice are incomplete or repeated",
                        expert=expert,
                    )
                )
    return Evidence(
        ok=not findings,
        summary=f"{parameter}: " + ("every byte has exactly one owner" if not findings else _lost_words(findings)),
        expected=f"{total} {axis.unit}s, each owned once",
        measured=measured,
        findings=findings[:_MOST],
        notes=[f"experts compared: {len(common)}"],
        seed=context.target.seed,
    )


def alignment(context: Context, weight: str, scale: str) -> Evidence:
    """On every rank, weights and scales begin and end at the same element of the checkpoint, on a scale group."""
    findings, measured = [], {}
    for rank in context.ranks:
        cut = {}
        for parameter in (weight, scale):
            axis, per_unit = Axis(parameter), expected.unit(parameter)
            loaded = context.loaded(parameter, rank)
            runs = axis.slices(loaded.seen, loaded.seen.covered[0], axis.shards[0])
            cut[parameter] = (runs[0][1].start * per_unit, runs[-1][1].stop * per_unit) if runs else (0, 0)
        measured[f"rank {rank}"] = {p: list(c) for p, c in cut.items()}
        (w_start, w_stop), (s_start, s_stop) = cut[weight], cut[scale]
        for edge, w, s in (("begin", w_start, s_start), ("end", w_stop, s_stop)):
            if w != s:
                findings.append(
                    Finding(
                        where=f"rank {rank}, {weight} against {scale}",
                        expected=f"both {edge} at element {w}",
                        got=f"weights {edge} at element {w}, scales at element {s}",
                        meaning=f"scales are {s - w:+d} elements off their weights",
                        rank=rank,
                    )
                )
            elif w % plan.ROUTED_ALIGNMENT:
                findings.append(
                    Finding(
                        where=f"rank {rank}, {weight}",
                        expected=f"a multiple of {plan.ROUTED_ALIGNMENT} elements",
                        got=f"the slice {edge}s at element {w}",
                        meaning="the boundary falls inside a scale group",
                        rank=rank,
                    )
                )
    return Evidence(
        ok=not findings,
        summary=f"{weight} and {scale} "
        + ("are cut at the same elements" if not findings else "part company: " + findings[0].got),
        expected="equal first and last element on every rank",
        measured=measured,
        findings=findings[:_MOST],
    )


def identity(context: Context, parameters: tuple[str, ...], part: str) -> tuple[list[Finding], dict[str, str]]:
    """Findings where a logical byte comes from another `expert` or another half (`shard`) than is due."""
    findings, measured = [], {}
    for parameter in parameters:
        wrong = [
            _finding(Axis(parameter), rank, d)
            for rank in context.ranks
            for d in _logical(context.loaded(parameter, rank))
            if d.got_origin and getattr(d.got_origin, part) != getattr(d.expected_origin, part)
        ]
        findings += wrong
        measured[parameter] = f"{len(wrong)} blocks from another {part}" if wrong else "as due"
    return findings[:_MOST], measured


def _logical(loaded: Loaded) -> list[Difference]:
    """Differences where a checkpoint byte is due."""
    found = differences(loaded.due.of_experts(loaded.seen.covered), loaded.seen)
    return [d for d in found if d.expected_origin is not None]


def _misplaced(d: Difference) -> bool:
    if d.expected_origin is None or d.got_origin is None:
        return True
    return (d.expected_origin.row, d.expected_origin.col) != (d.got_origin.row, d.got_origin.col)


def _unexplained(axis: Axis, rank: int, loaded: Loaded) -> list[Finding]:
    """A fingerprint that differs although numbered bytes land right: the loader depends on values, or on luck."""
    if not loaded.seen.unexplained:
        return []
    return [
        Finding(
            where=f"rank {rank}, {axis.parameter}, experts {loaded.seen.differing[:8]}",
            expected="the checkpoint's bytes",
            got="other bytes, while numbered bytes land where they are due",
            meaning="the loader depends on values or is not repeatable",
            rank=rank,
        )
    ]


def _first_experts_first(findings: Iterable[Finding]) -> list[Finding]:
    """One expert's findings on all ranks before the next expert's."""
    return sorted(findings, key=lambda f: (f.expert or 0, f.rank or 0))


def _finding(axis: Axis, rank: int, d: Difference) -> Finding:
    """Byte columns of scales are scale groups, and are called so by `axis.unit`."""
    return Finding(
        where=f"rank {rank}, expert {d.expert}, {axis.parameter} row {d.row}, byte {d.col}",
        expected=d.expected,
        got=d.got,
        meaning=f"{_off(axis, d)}the first of {d.size} bytes",
        rank=rank,
        expert=d.expert,
    )


def _off(axis: Axis, d: Difference) -> str:
    if d.expected_origin is None or d.got_origin is None:
        return ""
    off = axis.position(d.got_origin) - axis.position(d.expected_origin)
    elements = off * expected.unit(axis.parameter)
    return f"{off:+d} {axis.unit}s, {elements:+d} elements, off; " if off else ""


def _tail_finding(axis: Axis, rank: int, seen: Box, problem: str) -> Finding:
    return Finding(
        where=f"rank {rank}, expert {seen.experts.start}, {axis.unit}s {axis.along(seen)} of the {axis.parameter} tail",
        expected="zero",
        got=f"checkpoint byte {seen.origin}" if seen.origin else problem,
        meaning=_tail_meaning(seen.state),
        rank=rank,
        expert=seen.experts.start,
    )


def _tail_problem(context: Context, loaded: Loaded, seen: Box) -> str:
    if seen.state is State.ZERO:
        return ""
    if seen.state is State.UNTOUCHED:
        if not loaded.starts_zero:
            return "uninitialised memory, never written"
        return "zero since construction, but not written" if context.padded else ""
    return "a byte that is neither zero nor of the checkpoint" if seen.state is State.UNKNOWN else "checkpoint bytes"


def _tail_meaning(state: State) -> str:
    if state is State.SOURCE:
        return "padding holds another rank's data: the kernel multiplies it with whatever stands there"
    if state is State.UNTOUCHED:
        return "a reload, or memory used before, leaves stale bytes in the padding"
    return "the padding is not zero"


def _starts(axis: Axis, loads: list[Loaded], due: bool = False) -> list[int]:
    """First stored unit that each rank loads of the first shard; a rank that loads nothing is left out."""
    maps = [loaded.due if due else loaded.seen for loaded in loads]
    runs = [axis.slices(m, m.covered[0], axis.shards[0]) for m in maps]
    return [run[0][1].start for run in runs if run]


def _formula(context: Context, axis: Axis, starts: list[int]) -> str:
    g, tp = context.geometry, context.target.tp
    total = g.checkpoint_shape(axis.parameter)[0 if axis.by_rows else 1]
    per_rank = plan.routed_intermediate(g.intermediate, tp).per_rank
    width = expected.kernel_width(axis.parameter, context.experts_info(0).parameters[axis.parameter])
    return formula.stride(starts, total, tp, per_rank, width, expected.unit(axis.parameter))


def _spans(axis: Axis, loaded: ProvenanceMap) -> str:
    runs = axis.slices(loaded, loaded.covered[0], axis.shards[0])
    return ", ".join(str(source) for _, source in runs[:4]) + (" ..." if len(runs) > 4 else "") or "nothing"


def _tail_length(axis: Axis, loaded: ProvenanceMap, expert: int) -> int:
    """Stored units of the first shard behind the last one that holds anything but zero fill."""
    width = axis.width(loaded)
    filled = [
        axis.along(box).stop
        for box in loaded.of_experts([expert]).within(*axis.first_shard(loaded))
        if box.state not in (State.ZERO, State.UNTOUCHED)
    ]
    return width - max(filled, default=0)


def _join(values: Iterable[object]) -> str:
    return "/".join(map(str, values)) or "nothing loaded"


def _source_bytes(loaded: Loaded, expert: int, shard: str) -> int:
    one = loaded.seen.of_experts([expert])
    return sum(box.size for box in one.boxes if box.origin and box.origin.shard == shard)


def _elements(parameter: str, span: Span) -> str:
    per_unit = expected.unit(parameter)
    return f"elements [{span.start * per_unit}, {span.stop * per_unit}) of the intermediate axis"


def _lost_words(findings: list[Finding]) -> str:
    return "; ".join(dict.fromkeys(f"{f.where.split('checkpoint ')[-1]} {f.got}" for f in findings[:3]))
