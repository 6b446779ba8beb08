"""Post-load: the layout that the kernel reads, made of loaded parameters by the stack's own conversion, on a CPU.

Bytes against a recipe that shares nothing with the stack; places by bytes that tell where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from conformance.context import Context
from conformance.provenance import positions
from conformance.provenance.boxes import Box, Difference, ProvenanceMap, State, differences
from conformance.result import Evidence, Finding
from conformance.stacks.prepare_protocol import Form, Prepared
from conformance.stacks.protocols import SHARDS, ParameterInfo, Stack
from conformance.suite import claim
from suites.moe import coded, postload

_MOST = 12


@claim("moe.postload.bytes")
def equal(stack: Stack, context: Context) -> Evidence:
    """Every expert of every rank, random bytes: what the conversion leaves in memory is what the recipe makes of the
    same checkpoint."""
    checkpoint, experts = coded.random(context.target.seed), context.geometry.experts
    at_once, findings, compared, words = postload.group(experts), list[Finding](), 0, ""
    for rank in context.ranks:
        with postload.opened(context, rank, at_once) as layer:
            words, recipe = postload.words(context, layer), postload.recipe(context, layer)
            w2 = layer.info.loaded["w2_weight"]
            for first in range(0, experts, at_once):
                given = postload.loaded(context, layer, rank, checkpoint, range(first, first + at_once))
                made = layer.convert(given)
                for expert in range(first, first + at_once):
                    share = postload.share(context, rank, expert, checkpoint)
                    due = recipe.prepare(share, 2 * w2.cols, w2.rows)
                    for name, want in zip(SHARDS, due, strict=True):
                        got = made[name].data[expert - first]
                        compared += got.numel()
                        if finding := _first_wrong(name, rank, expert, got, want):
                            findings.append(finding)
    return Evidence(
        ok=not findings and compared > 0,
        summary=f"{experts} experts on {context.target.tp} ranks: every byte as the recipe makes it"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, {findings[0].expected} due; {findings[0].meaning}",
        expected=f"{compared} bytes, all equal",
        measured={"parameters of experts that differ": len(findings)},
        findings=findings[:_MOST],
        method=words,
        seed=context.target.seed,
    )


def _first_wrong(name: str, rank: int, expert: int, got: torch.Tensor, want: torch.Tensor) -> Finding | None:
    shape = tuple(want.shape)
    flat = want.flatten()
    where = f"rank {rank}, expert {expert}, prepared {name}"
    if got.numel() != flat.numel():
        size = f"{got.numel()} bytes"
        return Finding(where, f"{flat.numel()} bytes, {shape}", size, "another shape", rank=rank, expert=expert)
    wrong = got != flat
    count = int(wrong.sum())
    if not count:
        return None
    at = int(wrong.int().argmax())
    return Finding(
        where=f"{where}, byte {at} in memory",
        expected=f"0x{int(flat[at]):02X}",
        got=f"0x{int(got[at]):02X}",
        meaning=f"the first of {count} of {flat.numel()} bytes",
        rank=rank,
        expert=expert,
    )


@claim("moe.postload.w13")
def w13(stack: Stack, context: Context) -> Evidence:
    return _places(context, "w13_weight")


@claim("moe.postload.w13_scale")
def w13_scale(stack: Stack, context: Context) -> Evidence:
    return _places(context, "w13_weight_scale")


@claim("moe.postload.w2")
def w2(stack: Stack, context: Context) -> Evidence:
    return _places(context, "w2_weight")


@claim("moe.postload.w2_scale")
def w2_scale(stack: Stack, context: Context) -> Evidence:
    return _places(context, "w2_weight_scale")


def _places(context: Context, name: str) -> Evidence:
    """Wherever the kernel looks for a logical byte it finds the checkpoint byte that is due there."""
    ranks = postload.traced(context)
    findings = [
        _misplaced(name, rank, d)
        for rank, one in enumerate(ranks)
        for d in differences(one.due[name], one.seen[name])
        if d.expected_origin is not None and d.got_origin != d.expected_origin
    ]
    findings += [_unexplained(name, rank) for rank, one in enumerate(context.given_maps.maps[name]) if one.unexplained]
    return Evidence(
        ok=not findings,
        summary=f"prepared {name}: every logical byte is the checkpoint's, [up; gate]"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, {findings[0].expected} due",
        expected=_told(one.due[name] for one in ranks),
        measured=_told(one.seen[name] for one in ranks),
        findings=findings[:_MOST],
        notes=[f"{len(findings)} blocks differ"] if findings else [],
        method=f"{ranks[0].seen[name].method}; scales by where the kernel looks for them; "
        f"parameters: {context.given_maps.origin}",
    )


def _misplaced(name: str, rank: int, d: Difference) -> Finding:
    return Finding(
        where=f"rank {rank}, expert {d.expert}, prepared {name} row {d.row}, byte {d.col}",
        expected=d.expected,
        got=d.got,
        meaning=f"the first of {d.size} bytes",
        rank=rank,
        expert=d.expert,
    )


def _unexplained(name: str, rank: int) -> Finding:
    return Finding(
        where=f"rank {rank}, loaded {name}",
        expected="bytes that a map explains",
        got="bytes that depend on values or on the order of loading",
        meaning="what is converted is not known: see the loader's own claims",
        rank=rank,
    )


def _told(maps: Iterable[ProvenanceMap]) -> dict[str, list[str]]:
    """The boxes of the first expert of each rank, in words."""
    found: dict[str, list[str]] = {}
    for one in maps:
        boxes = one.of_experts([0]).boxes
        found[f"rank {one.rank}"] = [_box(box) for box in boxes[:_MOST]] + (["..."] if len(boxes) > _MOST else [])
    return found


def _box(box: Box) -> str:
    held = f"{box.origin.shard} from row {box.origin.row}, byte {box.origin.col}" if box.origin else str(box.state)
    return f"rows {box.rows}, bytes {box.cols}: {held}"


@claim("moe.postload.tails")
def tails(stack: Stack, context: Context) -> Evidence:
    """Wherever the kernel looks for padding it finds zero, in weights and scales alike."""
    findings, padded = [], {}
    ranks = postload.traced(context)
    for rank, one in enumerate(ranks):
        for name in SHARDS:
            due = [box for box in one.due[name].boxes if box.state is State.ZERO]
            padded[f"rank {rank}, {name}"] = sum(len(box.rows) * len(box.cols) for box in due)
            for box in due:
                for seen in one.seen[name].within(box.rows, box.cols):
                    if seen.state is not State.ZERO:
                        findings.append(_dirty(name, rank, seen))
    return Evidence(
        ok=not findings,
        summary="every byte of padding is zero after conversion"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, zero due",
        expected="zero",
        measured={"padded bytes an expert": padded},
        findings=findings[:_MOST],
        method=f"digit passes through conversion; parameters: {context.given_maps.origin}",
    )


def _dirty(name: str, rank: int, seen: Box) -> Finding:
    return Finding(
        where=f"rank {rank}, expert {seen.experts.start}, prepared {name} row {seen.rows.start}, "
        f"byte {seen.cols.start}",
        expected="zero",
        got=f"checkpoint byte {seen.origin}" if seen.origin else str(seen.state),
        rank=rank,
        expert=seen.experts.start,
    )


@claim("moe.postload.bijection")
def bijection(stack: Stack, context: Context) -> Evidence:
    """Each byte of a loaded parameter, numbered within its expert, is in the prepared one exactly once, in its own
    expert: nothing is lost, doubled or mixed."""
    experts = min(postload.AT_ONCE, context.geometry.experts)
    findings, words = [], ""
    for rank in context.ranks:
        with postload.opened(context, rank, experts) as layer:
            words, recipe = postload.words(context, layer), postload.recipe(context, layer)
            infos = layer.info.loaded
            sizes = {name: (p.rows, p.cols) for name, p in infos.items()}
            most = max(rows * cols for rows, cols in sizes.values())
            read: dict[str, list[torch.Tensor]] = {name: [] for name in SHARDS}
            for index in range(positions.passes(most)):
                done = layer.convert({n: _numbered(experts, *sizes[n], index) for n in SHARDS})
                for name in SHARDS:
                    read[name].append(_read(recipe, name, done[name], infos[name]))
            own = layer.convert({n: _owned(experts, *sizes[n]) for n in SHARDS})
            for name in SHARDS:
                owners = _read(recipe, name, own[name], infos[name])
                findings += _not_once(name, rank, read[name], owners, sizes[name][0] * sizes[name][1])
    return Evidence(
        ok=not findings,
        summary="conversion permutes the bytes of each expert"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, {findings[0].expected} due",
        expected="each byte once, in its own expert",
        measured={"parameters of ranks that differ": len(findings)},
        findings=findings[:_MOST],
        method=f"{words}; {experts} experts at once; bytes as the kernel looks them up",
    )


def _read(recipe: postload.Recipe, name: str, one: Prepared, info: ParameterInfo) -> torch.Tensor:
    """(experts, bytes) where the kernel looks for them: a layout that moves bits has whole bytes there alone."""
    return torch.stack([postload.read(recipe, name, one, e, info).flatten() for e in range(len(one.data))])


def _numbered(experts: int, rows: int, cols: int, index: int) -> torch.Tensor:
    return positions.digit(torch.arange(rows * cols), index).view(1, rows, cols).repeat(experts, 1, 1)


def _owned(experts: int, rows: int, cols: int) -> torch.Tensor:
    return torch.arange(1, experts + 1, dtype=torch.uint8)[:, None, None].repeat(1, rows, cols)


def _not_once(name: str, rank: int, digits: list[torch.Tensor], own: torch.Tensor, size: int) -> list[Finding]:
    findings = []
    for expert in range(len(own)):
        place = positions.decode([seen[expert] for seen in digits], size)
        alien = int((own[expert] != expert + 1).sum())
        strange = int((place < 0).sum())
        times = torch.bincount(place[place >= 0], minlength=size)
        lost, doubled = int((times == 0).sum()), int((times > 1).sum())
        if lost or doubled or alien or strange:
            findings.append(
                Finding(
                    where=f"rank {rank}, expert {expert}, {name}",
                    expected=f"{size} bytes, each once",
                    got=f"{lost} lost, {doubled} doubled, {alien} of another expert, {strange} of nowhere",
                    rank=rank,
                    expert=expert,
                )
            )
    return findings


@claim("moe.postload.form")
def form(stack: Stack, context: Context) -> Evidence:
    """Converted parameters have the shape and type that the kernel is given, lie in one piece, and so can be seen as
    it wants them."""
    experts = min(postload.AT_ONCE, context.geometry.experts)
    findings, measured, expected, words = [], {}, {}, ""
    for rank in context.ranks:
        with postload.opened(context, rank, experts) as layer:
            words, recipe = postload.words(context, layer), postload.recipe(context, layer)
            zeros = {n: torch.zeros((experts, p.rows, p.cols), dtype=torch.uint8) for n, p in layer.info.loaded.items()}
            for name, one in layer.convert(zeros).items():
                due, view = _due_form(recipe, name, zeros[name])
                expected[f"rank {rank}, {name}"] = f"{due}, seen as {view}"
                measured[f"rank {rank}, {name}"] = str(one.form)
                if one.form != due or one.form.shape[-1] % view.itemsize:
                    where, meaning = f"rank {rank}, {name}", f"the kernel is given it as {view}"
                    findings.append(Finding(where, str(due), str(one.form), meaning, rank=rank))
    return Evidence(
        ok=not findings,
        summary="shapes and types are those that the kernel is given"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, {findings[0].expected} due",
        expected=expected,
        measured=measured,
        findings=findings[:_MOST],
        method=words,
    )


def _due_form(recipe: postload.Recipe, name: str, loaded: torch.Tensor) -> tuple[Form, torch.dtype]:
    experts, *sizes = loaded.shape
    if name.endswith("_scale"):
        return Form((experts, *recipe.scale_shape(*sizes)), "uint8"), recipe.SCALE_VIEW
    return Form((experts, *sizes), "uint8"), recipe.WEIGHT_VIEW
