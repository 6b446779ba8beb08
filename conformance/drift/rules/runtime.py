"""Pillar R: compile flags, the scheduler that forms batches, and what all ranks must do alike."""

from __future__ import annotations

import ast
import re
from itertools import product
from typing import Any

from conformance.drift import geometry as g
from conformance.drift.context import MULTIGPU, README, SCHEDULER, WRAPPERS, Context
from conformance.drift.finding import Evidence, Finding, NotFound, Rule, judge
from conformance.drift.locate.arithmetic import evaluate
from conformance.drift.locate.cxx import CxxSource
from conformance.drift.locate.python import argument, key_text
from conformance.drift.rules.builder import traced

#: Teams that NVSHMEM makes itself (its documentation's predefined teams, as multigpu.py counts them).
_BUILTIN_TEAMS = 6
#: One team a tile of 128 columns of the hidden state.
_TEAMS = g.HIDDEN // 128


def flags_follow_arguments(context: Context) -> Finding:
    scheduler = CxxSource.of(context.mpk, SCHEDULER)
    needed = set(re.findall(r"\bMPK_(?:MAX_\w+|PAGE_SIZE)\b", scheduler.text))
    source = context.wrapper_source
    flags: dict[str, tuple[str, Evidence]] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.JoinedStr) and (found := re.fullmatch(r"-D(MPK_\w+)=\{(.+)\}", key_text(node) or "")):
            flags[found[1]] = (found[2].split(".")[-1], source.evidence(node))
    differences, places = [], []
    for macro in sorted(needed):
        due = macro.removeprefix("MPK_").lower()
        if macro not in flags:
            differences.append(f"{macro}: no -D flag sets it")
            continue
        attribute, place = flags[macro]
        places.append(place)
        if attribute != due:
            differences.append(f"{macro} is set from {attribute}, {due} due")
        handed, where = _from_demo(context, due)
        places += where
        if handed and handed != due:
            differences.append(f"{due} is given args.{handed} by the demo")
    if not flags:
        raise NotFound("anchor-absent", f"{WRAPPERS}: no -DMPK_*={{...}} flags")
    return judge(
        "each compile-time limit is the command-line argument of its name",
        "; ".join(sorted(set(differences))) or f"so for {len(needed)} limits",
        differences,
        places,
    )


def _from_demo(context: Context, name: str) -> tuple[str, list[Evidence]]:
    """The `args.X` that the demo gives PersistentKernel for `name`; empty where it gives something else."""
    for call in context.demo.calls("PersistentKernel"):
        value = argument(call, name)
        if isinstance(value, ast.Attribute) and ast.unparse(value.value) == "args":
            return value.attr, [context.demo.evidence(value)]
    return "", []


def rdc_with_nvshmem(context: Context) -> Finding:
    source = context.wrapper_source
    nodes = [n for n in ast.walk(source.tree) if isinstance(n, ast.IfExp) and "-rdc=" in ast.unparse(n)]
    if len(nodes) != 1:
        raise NotFound(
            "ambiguous" if nodes else "anchor-absent", f"{WRAPPERS}: {len(nodes)} choices of -rdc, 1 was due"
        )
    differences = []
    for nvshmem, escape in product((False, True), repeat=2):
        flag = evaluate(nodes[0], {"use_nvshmem": nvshmem, "_rdc_false": escape, "mpk.use_nvshmem": nvshmem})
        due = "-rdc=true" if nvshmem and not escape else "-rdc=false"
        if flag != due:
            case = f"{'with' if nvshmem else 'without'} NVSHMEM{', escape hatch set' if escape else ''}"
            differences.append(f"{case}: {flag}, {due} due")
    places = [source.evidence(nodes[0])]
    for node in source.assignments("_rdc_false"):
        places.append(source.evidence(node))
        if "'0'" not in ast.unparse(node) and "None" not in ast.unparse(node):
            differences.append("the escape hatch MPK_RDC_FALSE is not off by default")
    return judge(
        "-rdc=true iff NVSHMEM is used, unless MPK_RDC_FALSE=1",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        places,
    )


def batches_consistent(context: Context) -> Finding:
    """The scheduler's own prepare_next_batch, compiled for the CPU and run to the end of every request."""
    result: dict[str, Any] = context.probe("scheduler")
    source = CxxSource.of(context.mpk, SCHEDULER)
    body = source.function("prepare_next_batch")
    differences = [f"{p['what']} ({p['count']} times in {p['configuration']})" for p in result["problems"]]
    lengths = ", ".join(str(q) for q in result["q_lens"])
    note = f"{result['iterations']} iterations in {result['configurations']} configurations; Q_LEN seen: {lengths}"
    return judge(
        "pages, last-page lengths, index pointers and token counts agree after every batch",
        "; ".join(p["what"] for p in result["problems"]) or "they do",
        [d.split(" (")[0] for d in differences],
        [source.evidence(body.start, body.name)],
        note=note,
    )


def ranks_alike(context: Context) -> Finding:
    flows = traced(
        context, lambda flow: flow.ranks == 4 and flow.tokens > 8 and flow.sequence > 128 and flow.drafts > 1
    )
    if len(flows) < 2:
        raise NotFound("not-evaluated", "only one rank was traced")
    first = flows[0]
    differences, places = [], []
    for other in flows[1:]:
        for mine, theirs in zip(first.steps, other.steps, strict=False):
            if (mine.layer, mine.tasks, mine.grids) != (theirs.layer, theirs.tasks, theirs.grids):
                differences.append(f"rank {other.rank} runs {theirs.layer} where rank {first.rank} runs {mine.layer}")
                places += [context.builder.at(mine.line), context.builder.at(theirs.line)]
                break
        else:
            if len(first.steps) != len(other.steps):
                differences.append(
                    f"rank {other.rank} runs {len(other.steps)} layers, rank {first.rank} {len(first.steps)}"
                )
    reduces = [s for s in first.steps if "allreduce" in s.layer]
    places = places or [context.builder.at(step.line) for step in reduces[:4]] or [context.builder.at(1)]
    return judge(
        "all ranks run the same layers in the same order",
        "; ".join(sorted(set(differences))) or f"{len(first.steps)} layers on {len(flows)} ranks",
        differences,
        places,
    )


def team_budget(context: Context) -> Finding:
    source = context.python(MULTIGPU)
    function = source.method("allocate_nvshmem_teams")
    requested = function.args.args[-1].arg
    node = source.assigned("max_num_teams", function)
    limit = evaluate(node, {requested: _TEAMS})
    differences = []
    if limit < _TEAMS + _BUILTIN_TEAMS:
        differences.append(f"NVSHMEM_MAX_TEAMS is {limit} for {_TEAMS} teams and {_BUILTIN_TEAMS} of NVSHMEM's own")
    scheduler = CxxSource.of(context.mpk, SCHEDULER)
    made = re.search(r"\bnvshmem_team_split_strided\b", scheduler.text)
    if made is None:
        raise NotFound("anchor-absent", f"{SCHEDULER}: no nvshmem_team_split_strided")
    places = [source.evidence(node), scheduler.evidence(made.start(), "team split")]
    note = "how many teams the graph asks for needs --execute"
    if "trace" in context.probes:
        most = 0
        for flow in traced(context, lambda flow: flow.ranks > 1):
            for step in (s for s in flow.steps if "allreduce" in s.layer):
                for grid in step.grids:
                    most = max(most, grid[0] * grid[1] * grid[2])
        note = f"the largest all-reduce asks for {most} teams"
        if most > _TEAMS:
            differences.append(f"an all-reduce asks for {most} teams, {_TEAMS} tiles of 128 columns are there")
    return judge(
        f"at most {_TEAMS} teams, and NVSHMEM_MAX_TEAMS above them",
        "; ".join(sorted(set(differences))) or f"NVSHMEM_MAX_TEAMS = {limit}",
        differences,
        places,
        note=note,
    )


def versions_named(context: Context) -> Finding:
    """Only told: which versions the readme and the compile step's comment name."""
    comment, readme = context.wrapper_source.file, context.mpk.file(README)
    named = re.compile(r"NVSHMEM\W{0,8}(\d+\.\d+(?:\.\d+)?)")
    ours, theirs = named.search(comment.text), named.search(readme.text)
    if ours is None or theirs is None:
        raise NotFound("anchor-absent", f"{README if theirs is None else WRAPPERS}: names no NVSHMEM version")
    differences = [] if ours[1] == theirs[1] else [f"the readme names NVSHMEM {theirs[1]}, the compile step {ours[1]}"]
    cuda = re.search(r"CUDA\s+(\d+\.\d+)", comment.text)
    places = [readme.evidence(readme.line_of(theirs.start())), comment.evidence(comment.line_of(ours.start()))]
    return judge(
        f"one NVSHMEM version (verified with CUDA {cuda[1] if cuda else '?'})",
        differences[0] if differences else f"NVSHMEM {ours[1]}",
        differences,
        places,
        deferred=True,
    )


RULES = [
    Rule(
        "R01",
        "compile-time limits are the arguments given",
        "crash",
        "Two limits swapped give a kernel for another page table.",
        flags_follow_arguments,
    ),
    Rule(
        "R02",
        "relocatable device code with NVSHMEM",
        "crash",
        "Without it the device library does not link, or falls back silently.",
        rdc_with_nvshmem,
    ),
    Rule(
        "R03",
        "the scheduler's batches are consistent",
        "wrong-output",
        "A last page of length 0, or stale index pointers, attend to other requests' tokens.",
        batches_consistent,
        "scheduler",
    ),
    Rule(
        "R04",
        "all ranks run one sequence of layers",
        "hang",
        "A collective that one rank skips never ends on the others.",
        ranks_alike,
        "trace",
    ),
    Rule(
        "R05",
        "NVSHMEM teams stay within their budget",
        "crash",
        "One team a tile; beyond the budget the split fails at start-up.",
        team_budget,
    ),
    Rule(
        "R06",
        "one NVSHMEM version is named",
        "informational",
        "Another version than the verified one spills registers.",
        versions_named,
        required=False,
    ),
]
