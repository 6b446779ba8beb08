"""Checks of one group of tensors over all layers and ranks of a whole model, loaded by checkpoint name."""

from __future__ import annotations

from collections.abc import Callable

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.provenance import model_maps
from conformance.provenance.boxes import Box, Span, State
from conformance.result import Evidence, Finding
from suites.loader import ownership, placing

_MOST = 12
#: group of claims -> modules of a layer (or whole names, outside layers)
GROUPS = {
    "wq_b": ("attn.wq_b",),
    "wo_a": ("attn.wo_a",),
    "wo_b": ("attn.wo_b",),
    "shared_gate_up": ("ffn.shared_experts.w1", "ffn.shared_experts.w3"),
    "shared_down": ("ffn.shared_experts.w2",),
    "routed": ("ffn.experts.*.w1", "ffn.experts.*.w2", "ffn.experts.*.w3"),
    "sink": ("attn.attn_sink", "self_attn.sinks"),
    "vocab": ("embed.weight", "head.weight", "model.embed_tokens.weight", "lm_head.weight"),
}
#: The same of a model of plain attention.
PLAIN = {
    "qkvo": tuple(f"self_attn.{part}_proj{end}" for part in "qkvo" for end in ("", ".bias")),
    "expert_bias": ("mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"),
}


def names(context: Context, group: str, draft: bool = False) -> list[str]:
    """The group's tensors. `replicated`: every tensor that no plan cuts. Raises NotSupported where there are none."""
    kinds, place = placing.tensors(context, draft).kinds, placing.tensors(context, draft).place
    if group == "replicated":
        found = [name for name, kind in kinds.items() if place(kind) is None]
    else:
        found = [name for name, kind in kinds.items() if _module(kind) in (GROUPS | PLAIN)[group] and place(kind)]
    if not found:
        raise NotSupported(f"{context.geometry.name} has no tensors of the group {group}")
    return found


def _module(kind: str) -> str:
    return kind.partition(".*.")[2].removesuffix(".weight").removesuffix(".scale") or kind


def offsets(context: Context, group: str, draft: bool = False) -> Evidence:
    """Each rank holds its own part of every tensor of the group, whole, once, and where it belongs."""
    listed = names(context, group, draft)
    findings: list[Finding] = []
    expected: dict[str, list[str]] = {}
    measured: dict[str, list[str]] = {}
    for rank in context.ranks:
        model = context.model(rank, draft)
        found = [f for name in listed if (f := placing.misplaced(context, model, name, rank, draft))]
        findings += found
        for name in _one_layer(listed):
            part = str(placing.due(context, name, rank, draft))
            expected.setdefault(name, []).append(part)
            measured.setdefault(name, []).append(next((f.got for f in found if name in f.where), part))
    return Evidence(
        ok=not findings,
        summary=_summary(group, listed, expected)
        if not findings
        else f"{findings[0].where}: {findings[0].expected} due, {findings[0].got} held ({findings[0].meaning})",
        expected=expected,
        measured=measured,
        findings=findings[:_MOST],
        notes=notes(context, draft) + ([f"{len(findings)} tensors differ"] if findings else []),
        method="digit passes over the whole model",
    )


def tails(context: Context, group: str, draft: bool = False) -> Evidence:
    """Where no checkpoint element is due there is zero (behind the sinks -inf), written where the plan pads."""
    listed = set(names(context, group, draft))
    fill = State.MINUS_INF if group == "sink" else State.ZERO
    findings: list[Finding] = []
    measured: dict[str, list[str]] = {}
    theirs = [p for p, tensors in placing.homes(context, draft).items() if listed & {*tensors}]
    for rank in context.ranks:
        model = context.model(rank, draft)
        for parameter in theirs:
            for rows, cols in placing.tails(context, model, parameter, rank, draft):
                where = f"rank {rank}, {parameter}, rows {rows}, columns {cols}"
                measured[where] = []
                for box in model.maps[parameter].within(rows, cols):
                    measured[where].append(box.state.value)
                    if problem := placing.tail_problem(context, model, parameter, box, fill):
                        words = "the padding must contribute exactly nothing"
                        findings.append(Finding(where, fill.value, problem, words, rank=rank))
    return Evidence(
        ok=not findings,
        summary=f"{group}: {len(measured)} tails, all {fill.value}"
        if not findings
        else f"{findings[0].where}: {findings[0].got}",
        expected=fill.value,
        measured={where: measured[where] for where in list(measured)[:_MOST]},
        findings=findings[:_MOST],
        notes=notes(context, draft),
        method="digit passes over the whole model",
    )


def partition(context: Context, group: str, draft: bool = False) -> Evidence:
    """The ranks' parts together are the checkpoint: every element of every tensor held by exactly one rank."""
    findings: list[Finding] = []
    measured = {}
    for name in names(context, group, draft):
        cut = placing.tensors(context, draft).cut(name, context.target.tp, 0)
        assert cut is not None
        total, across = _extent(context, name, cut.axis, draft)
        parts: list[tuple[Span, int]] = []
        for rank in context.ranks:
            for _, box in placing.placed(context, rank, draft).get(name, []):
                spans = placing.source(box)
                if len(spans[1 - cut.axis]) != across:
                    findings.append(_partial(name, rank, spans, cut.axis))
                parts.append((spans[cut.axis], rank))
        measured[name] = [f"rank {rank} {span}" for span, rank in sorted(parts)]
        findings += _gaps(name, sorted(parts), total)
    return Evidence(
        ok=not findings,
        summary=f"{group}: {len(measured)} tensors, each element held once"
        if not findings
        else f"{findings[0].where}: {findings[0].got}",
        expected="every element held by exactly one rank",
        measured={name: measured[name] for name in _one_layer(list(measured))},
        findings=findings[:_MOST],
        notes=notes(context, draft),
        method="digit passes over the whole model",
    )


def every(context: Context, check: Callable[[Context, str, bool], Evidence], draft: bool) -> Evidence:
    """The check over all groups that are cut, as one claim. The draft has no vocabulary of its own."""
    parts = {group: check(context, group, draft) for group in GROUPS if group != "vocab" or not draft}
    wrong = [part for part in parts.values() if not part.ok]
    return Evidence(
        ok=not wrong,
        summary="; ".join(part.summary for part in (wrong or list(parts.values()))[:3]),
        expected={group: part.expected for group, part in parts.items()},
        measured={group: part.measured for group, part in parts.items()},
        findings=[finding for part in wrong for finding in part.findings][:_MOST],
        notes=notes(context, draft),
        method="digit passes over the whole draft model",
    )


def _extent(context: Context, name: str, axis: int, draft: bool) -> tuple[int, int]:
    """(stored elements along the axis, along the other one)."""
    shape = placing.matrix(placing.tensors(context, draft).stored[name][1])
    return shape[axis], shape[1 - axis]


def _partial(name: str, rank: int, spans: tuple[Span, Span], axis: int) -> Finding:
    words = f"{('columns', 'rows')[axis]} {spans[1 - axis]} only"
    return Finding(f"rank {rank}, {name}", "all of the axis that is not cut", words, "the rest is lost", rank=rank)


def _gaps(name: str, parts: list[tuple[Span, int]], total: int) -> list[Finding]:
    words = {"lost": ("held by no rank", "lost"), "doubled": ("held by two ranks", "summed twice")}
    return [
        Finding(name, "held once", f"{span} {words[what][0]}", words[what][1], rank=rank)
        for what, span, rank in ownership.gaps(parts, total)
    ]


def alignment(context: Context, group: str, draft: bool = False) -> Evidence:
    """A scale lies where its weight lies: both begin at the same element, in source and in destination."""
    findings: list[Finding] = []
    measured: dict[str, list[tuple[int, int]]] = {}
    pairs = [(n, n.removesuffix("weight") + "scale") for n in names(context, group, draft) if n.endswith(".weight")]
    stored = placing.tensors(context, draft).stored
    for weight, scale in pairs:
        for rank in context.ranks:
            placed = placing.placed(context, rank, draft)
            starts = [
                _starts(context, name, rank, draft, placed.get(name, [])) for name in (weight, scale) if name in stored
            ]
            measured[f"rank {rank}, {weight}"] = starts
            if len(starts) == 2 and starts[0] != starts[1]:
                findings.append(
                    Finding(
                        f"rank {rank}, {weight} and its scale",
                        f"both from element {starts[0][0]}, at element {starts[0][1]} of the parameter",
                        f"the scale from element {starts[1][0]}, at element {starts[1][1]}",
                        "each weight is multiplied by another block's scale",
                        rank=rank,
                    )
                )
    return Evidence(
        ok=not findings,
        summary=f"{group}: {len(pairs)} weights and their scales cut at the same element"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, where {findings[0].expected} was due",
        expected="weight and scale cut at the same element",
        measured={k: v for k, v in measured.items() if k.split(", ")[1] in _one_layer([w for w, _ in pairs])},
        findings=findings[:_MOST],
        notes=notes(context, draft),
        method="digit passes over the whole model",
    )


def _starts(context: Context, name: str, rank: int, draft: bool, held: list[tuple[str, Box]]) -> tuple[int, int]:
    """(element of the checkpoint, element of the parameter) at which the rank's part begins; -1 if it holds nothing."""
    cut = placing.tensors(context, draft).cut(name, context.target.tp, rank)
    if not held or cut is None:
        return -1, -1
    _, box = held[0]
    rows, cols = placing.source(box)
    source = rows.start if cut.axis == 0 else cols.start
    place = box.rows.start if cut.axis == 0 else box.cols.start
    return source * cut.unit, place * cut.unit


def _one_layer(listed: list[str]) -> list[str]:
    """The tensors of the first layer that has any: what the evidence shows."""
    prefixes = [".".join(name.split(".")[:2]) for name in listed]
    return [name for name, prefix in zip(listed, prefixes, strict=True) if prefix == prefixes[0] or "." not in name]


def _summary(group: str, listed: list[str], expected: dict[str, list[str]]) -> str:
    first = next(iter(expected))
    return f"{group}: {len(listed)} tensors where they belong; {first}: {', '.join(expected[first])}"


def notes(context: Context, draft: bool) -> list[str]:
    known = placing.tensors(context, draft)
    depth = "the draft layers" if draft else f"the first {known.layers} of {context.geometry.layers} layers"
    return [
        f"{len(known.stored)} tensors: {depth} (they hold every kind of layer that the model has), "
        f"{model_maps.EXPERTS} of {context.geometry.experts} experts a layer"
    ]
