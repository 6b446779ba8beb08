"""The whole checkpoint: everything consumed, everything written, and what is done about a checkpoint that is wrong."""

from __future__ import annotations

from conformance.context import Context
from conformance.provenance import model_maps
from conformance.provenance.boxes import State
from conformance.result import Evidence, Finding
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from suites.loader import everything, mutated, placing, whole

_MOST = 12


@claim("loader.checkpoint.consumed")
def consumed(stack: Stack, context: Context) -> Evidence:
    """Every key of the checkpoint reaches a parameter, on every rank that is due a part of it."""
    return consumption(context)


def consumption(context: Context, draft: bool = False) -> Evidence:
    listed = placing.tensors(context, draft).stored
    findings = []
    for rank in context.ranks:
        placed = placing.placed(context, rank, draft)
        findings += [
            Finding(f"rank {rank}, {name}", "in a parameter", "in none", "silently dropped", rank=rank)
            for name in listed
            if name not in placed and not placing.due(context, name, rank, draft).empty
        ]
    return Evidence(
        ok=not findings,
        summary=f"all of {len(listed)} tensors are in a parameter of every rank that is due a part"
        if not findings
        else f"{findings[0].where} is in no parameter: silently dropped ({len(findings)} such)",
        expected=len(listed),
        measured=len(listed) - len({f.where.split(", ")[1] for f in findings}),
        findings=findings[:_MOST],
        notes=whole.notes(context, draft),
    )


@claim("loader.checkpoint.every")
def every(stack: Stack, context: Context) -> Evidence:
    """Every key of every layer, and experts with long numbers, in the parameter that it is named for."""
    return everything.evidence(context)


@claim("loader.checkpoint.written")
def written(stack: Stack, context: Context) -> Evidence:
    """Every element of every parameter is a checkpoint element, a due tail, or was initialised by the stack itself."""
    return writing(context)


#: Parameters of a draft model that hold nothing of their own: the target's are put in their place after loading.
SHARED_WITH_TARGET = ("embed_tokens.weight", "shared_head.head.weight")


def writing(context: Context, draft: bool = False) -> Evidence:
    findings: list[Finding] = []
    own: list[str] = []
    for rank in context.ranks:
        model = context.model(rank, draft)
        for parameter, one in model.maps.items():
            if draft and parameter.endswith(SHARED_WITH_TARGET) and model_maps.untouched(model, parameter):
                continue
            for box in one.boxes:
                problem = ""
                if box.state is State.UNKNOWN:
                    problem = "neither a checkpoint element nor zero"
                elif box.state is State.UNTOUCHED:
                    began = model.began_as(parameter, box)
                    problem = "never written, and uninitialised memory" if began == "uninitialised" else ""
                    if model_maps.untouched(model, parameter) and began != "uninitialised":
                        own.append(parameter)
                if problem:
                    where = f"rank {rank}, {parameter}, rows {box.rows}, columns {box.cols}"
                    findings.append(Finding(where, "a checkpoint element or a tail", problem, "undefined", rank=rank))
    count = len(context.model(0, draft).maps)
    kept = sorted(set(own))
    return Evidence(
        ok=not findings,
        summary=f"every element of {count} parameters a rank is accounted for"
        if not findings
        else f"{findings[0].where}: {findings[0].got}",
        expected="no element left as it was allocated",
        measured={"parameters": count, "not in the checkpoint, initialised by the stack": kept},
        findings=findings[:_MOST],
        notes=whole.notes(context, draft),
    )


@claim("loader.checkpoint.removed")
def removed(stack: Stack, context: Context) -> Evidence:
    return mutated.evidence(context, "removed")


@claim("loader.checkpoint.scale_missing")
def scale_missing(stack: Stack, context: Context) -> Evidence:
    return mutated.evidence(context, "scale_missing")


@claim("loader.checkpoint.renamed")
def renamed(stack: Stack, context: Context) -> Evidence:
    return mutated.evidence(context, "renamed")


@claim("loader.checkpoint.doubled")
def doubled(stack: Stack, context: Context) -> Evidence:
    return mutated.evidence(context, "doubled")


@claim("loader.checkpoint.transposed")
def transposed(stack: Stack, context: Context) -> Evidence:
    return mutated.evidence(context, "transposed")


@claim("loader.checkpoint.named")
def named(stack: Stack, context: Context) -> Evidence:
    return mutated.naming(context)
