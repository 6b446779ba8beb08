"""Checks of one parameter over all ranks: offsets, tails, partition, and weights against their scales."""

from __future__ import annotations

from conformance import expected
from conformance.context import Context, Loaded
from conformance.provenance.boxes import Difference, Span, State, differences
from conformance.result import Evidence, Finding
from references import plan
from suites.loader import formula
from suites.loader.axis import Axis

_MOST = 12  # findings kept a claim; the counts tell the rest


def offsets(context: Context, parameter: str) -> Evidence:
    """Every logical destination byte holds the checkpoint byte that is due there (position, not expert or half)."""
    axis = Axis(parameter)
    shape = context.geometry.checkpoint_shape(parameter)
    due_slices, got_slices, findings, methods, starts = {}, {}, [], [], []
    for rank in context.ranks:
        loaded = context.loaded(parameter, rank)
        due = axis.due(context, rank, loaded)
        due_slices[f"rank {rank}"] = str(Span(due.start, due.stop))
        got_slices[f"rank {rank}"] = _spans(axis, loaded)
        methods.append(loaded.seen.method)
        if first := axis.slices(loaded, loaded.seen.covered[0], axis.shards[0]):
            starts.append(first[0][1].start)
        for difference in _logical(context, axis, loaded, rank):
            if _misplaced(difference):
                findings.append(_finding(axis, rank, difference))
    g, tp = context.geometry, context.target.tp
    due_axis = plan.routed_intermediate(g.intermediate, tp).per_rank
    loaded = context.loaded(parameter, 0)
    width = expected.kernel_width(parameter, context.experts_info(0).parameters[parameter])
    used = formula.stride(
        starts, shape[0 if axis.by_rows else 1], tp, due_axis, width, expected.unit(parameter)
    )
    unexplained = _unexplained(context, axis)
    starts_words = "/".join(map(str, starts)) or "nothing loaded"
    return Evidence(
        ok=not findings and not unexplained,
        summary=f"{parameter}: {axis.unit}s start at {starts_words} on ranks 0..{tp - 1}"
        + (f"; {used}" if used and findings else ""),
        expected=due_slices,
        measured=got_slices,
        findings=(findings + unexplained)[:_MOST],
        notes=[f"{len(findings)} blocks differ"] if findings else [],
        method="; ".join(sorted(set(methods))),
        seed=context.target.seed,
    )


def tails(context: Context, parameter: str) -> Evidence:
    """Beyond the logical slice every byte is zero: written zero where the plan pads, else at least begun as zero."""
    axis = Axis(parameter)
    due_tails, got_tails, findings, methods = {}, {}, [], set()
    for rank in context.ranks:
        loaded = context.loaded(parameter, rank)
        due = axis.due(context, rank, loaded)
        due_tails[f"rank {rank}"] = due.tail
        methods.add(loaded.seen.method)
        zeros: set[int] = set()
        for box in loaded.due.of_experts(loaded.seen.covered).boxes:
            if box.state is not State.ZERO:
                continue
            for seen in loaded.seen.within(box.rows, box.cols):
                if not seen.experts & box.experts:
                    continue
                problem = _tail_problem(context, loaded, seen.state)
                along = axis.of(seen)
                if problem:
                    word = f"{axis.unit}s {along} of the {parameter} tail"
                    findings.append(
                        Finding(
                            where=f"rank {rank}, expert {seen.experts.start}, {word}",
                            expected="zero",
                            got=f"checkpoint byte {seen.origin}" if seen.origin else problem,
                            meaning=_tail_meaning(seen.state),
                            rank=rank,
                            expert=seen.experts.start,
                        )
                    )
                elif seen.experts & Span(loaded.seen.covered[0], loaded.seen.covered[0] + 1):
                    zeros.update(range(along.start, along.stop))
        got_tails[f"rank {rank}"] = _tail_length(axis, loaded, zeros)
    required = "written zeros" if context.padded else "zeros"
    return Evidence(
        ok=not findings,
        summary=f"{parameter}: tails of {'/'.join(str(n) for n in got_tails.values())} {axis.unit}s are {required}"
        f" ({'/'.join(str(n) for n in due_tails.values())} due)",
        expected=due_tails,
        measured=got_tails,
        findings=findings[:_MOST],
        method="; ".join(sorted(methods)),
        seed=context.target.seed,
    )


def partition(context: Context, parameter: str) -> Evidence:
    """The ranks' slices together are the checkpoint: every byte loaded once, none lost, none doubled."""
    axis = Axis(parameter)
    shape = context.geometry.checkpoint_shape(parameter)
    total = shape[0 if axis.by_rows else 1]
    loads = [context.loaded(parameter, rank) for rank in context.ranks]
    common = sorted(set.intersection(*(set(loaded.seen.covered) for loaded in loads)))
    findings, measured = [], {}
    for expert in common:
        for shard in axis.shards:
            owned = [
                (run, rank)
                for rank, loaded in enumerate(loads)
                for _, run in axis.slices(loaded, expert, shard)
            ]
            bytes_loaded = sum(_source_bytes(loaded, expert, shard) for loaded in loads)
            lost, doubled = _gaps(owned, total)
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
        summary=f"{parameter}: "
        + ("every byte has exactly one owner" if not findings else _lost_words(findings)),
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
            runs = axis.slices(loaded, loaded.seen.covered[0], axis.shards[0])
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


def identity(
    context: Context, parameters: tuple[str, ...], part: str
) -> tuple[list[Finding], dict[str, str]]:
    """Findings where a logical byte comes from another `expert` or another half (`shard`) than is due."""
    findings, measured = [], {}
    for parameter in parameters:
        axis = Axis(parameter)
        wrong = 0
        for rank in context.ranks:
            for d in _logical(context, axis, context.loaded(parameter, rank), rank):
                if (
                    d.got_origin
                    and d.expected_origin
                    and getattr(d.got_origin, part) != getattr(d.expected_origin, part)
                ):
                    wrong += 1
                    findings.append(_finding(axis, rank, d))
        measured[parameter] = "as due" if not wrong else f"{wrong} blocks from another {part}"
    return findings[:_MOST], measured


def _logical(context: Context, axis: Axis, loaded: Loaded, rank: int) -> list[Difference]:
    """Differences inside the regions that hold checkpoint bytes."""
    due = axis.due(context, rank, loaded)
    regions = list(axis.logical(loaded, due, context.geometry.checkpoint_shape(axis.parameter)))
    found = []
    for difference in differences(loaded.due.of_experts(loaded.seen.covered), loaded.seen):
        row, col = difference.row, difference.col
        if any(r.start <= row < r.stop and c.start <= col < c.stop for _, r, c in regions):
            found.append(difference)
    return found


def _misplaced(d: Difference) -> bool:
    if d.expected_origin is None or d.got_origin is None:
        return True
    return (d.expected_origin.row, d.expected_origin.col) != (d.got_origin.row, d.got_origin.col)


def _unexplained(context: Context, axis: Axis) -> list[Finding]:
    """A fingerprint that differs although numbered bytes land right: the loader depends on values, or on luck."""
    return [
        Finding(
            where=f"rank {rank}, {axis.parameter}, experts {loaded.seen.differing[:8]}",
            expected="the checkpoint's bytes",
            got="other bytes, while numbered bytes land where they are due",
            meaning="the loader depends on values or is not repeatable",
            rank=rank,
        )
        for rank in context.ranks
        if (loaded := context.loaded(axis.parameter, rank)).seen.differing
        and not differences(loaded.due.of_experts(loaded.seen.covered), loaded.seen)
    ]


def _finding(axis: Axis, rank: int, d: Difference) -> Finding:
    along = d.row if axis.by_rows else d.col
    return Finding(
        where=f"rank {rank}, expert {d.expert}, {axis.parameter} row {d.row}, byte {d.col}",
        expected=d.expected,
        got=d.got,
        meaning=f"{axis.unit} {along} of rank {rank} holds {d.got}; {d.expected} was due ({d.size} bytes)",
        rank=rank,
        expert=d.expert,
    )


def _spans(axis: Axis, loaded: Loaded) -> str:
    runs = axis.slices(loaded, loaded.seen.covered[0], axis.shards[0])
    return ", ".join(str(source) for _, source in runs[:4]) + (" ..." if len(runs) > 4 else "") or "nothing"


def _tail_problem(context: Context, loaded: Loaded, state: State) -> str:
    if state is State.ZERO:
        return ""
    if state is State.UNTOUCHED:
        if not loaded.starts_zero:
            return "uninitialised memory, never written"
        return "zero since construction, but not written" if context.padded else ""
    return (
        "a byte that is neither zero nor of the checkpoint" if state is State.UNKNOWN else "checkpoint bytes"
    )


def _tail_meaning(state: State) -> str:
    if state is State.SOURCE:
        return "padding holds another rank's data: the kernel multiplies it with whatever stands there"
    if state is State.UNTOUCHED:
        return "a reload, or memory used before, leaves stale bytes in the padding"
    return "the padding is not zero"


def _tail_length(axis: Axis, loaded: Loaded, zeros: set[int]) -> int:
    """Zero units at the end of the axis (of the first half), counted back from the last one."""
    _, rows, cols = loaded.seen.shape
    end = rows // 2 if axis.by_rows else cols
    length = 0
    while end - length - 1 in zeros:
        length += 1
    return length


def _source_bytes(loaded: Loaded, expert: int, shard: str) -> int:
    one = loaded.seen.of_experts([expert])
    return sum(box.size for box in one.boxes if box.origin and box.origin.shard == shard)


def _gaps(owned: list[tuple[Span, int]], total: int) -> tuple[list[Span], list[Span]]:
    """(never loaded, loaded more than once) spans of [0, total)."""
    lost, doubled, reached = [], [], 0
    for run, _ in sorted(owned):
        if run.start > reached:
            lost.append(Span(reached, run.start))
        elif run.start < reached:
            doubled.append(Span(run.start, min(reached, run.stop)))
        reached = max(reached, run.stop)
    if reached < total:
        lost.append(Span(reached, total))
    return lost, doubled


def _elements(parameter: str, span: Span) -> str:
    per_unit = expected.unit(parameter)
    return f"elements [{span.start * per_unit}, {span.stop * per_unit}) of the intermediate axis"


def _lost_words(findings: list[Finding]) -> str:
    return "; ".join(dict.fromkeys(f"{f.where.split('checkpoint ')[-1]} {f.got}" for f in findings[:3]))
