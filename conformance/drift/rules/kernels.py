"""Pillar K, first half: a task is the same thing in its Python wrapper, graph.cc, task_register.cc and runtime.cc."""

from __future__ import annotations

import ast
import posixpath
import re

from conformance.drift.context import KERNELS, WRAPPERS, Context
from conformance.drift.finding import Evidence, Finding, NotFound, Rule, judge
from conformance.drift.locate.cxx import without_comments
from conformance.drift.locate.python import argument
from conformance.drift.locate.tasks import GRAPH, REGISTER_HEADER, Arm
from conformance.drift.locate.wrappers import layers_called

_METADATA_TASKS = re.compile(r"mla_|moe_")


def _chain_arms(context: Context) -> list[Arm]:
    """Dispatch arms of the tasks that the builder reaches, by name."""
    names = sorted({r.task for r in context.chain} & context.tasks.arms.keys())
    if not names:
        raise NotFound("anchor-absent", f"{GRAPH}: no dispatch arm for any task that the builder reaches")
    return [context.tasks.arms[name] for name in names]


def registered_everywhere(context: Context) -> Finding:
    arms = context.tasks.arms
    declared = set(re.findall(r"\b(register_\w+_task)\s*\(", context.mpk.file(REGISTER_HEADER).text))
    included = _included(context)
    differences, places = [], []
    for r in context.registrations:
        if r.task not in arms:
            differences.append(f"{r.wrapper} registers {r.task!r}, which graph.cc does not dispatch")
            places.append(r.evidence)
    for arm in _chain_arms(context):
        missing = []
        if arm.task not in context.enum:
            missing.append("runtime_header.h's enum")
        if arm.register and arm.register not in declared:
            missing.append("task_register.h")
        if arm.register and not context.tasks.defined(arm):
            missing.append("task_register.cc")
        if arm.task not in context.printed:
            missing.append("runtime.cc's task_type_to_name")
        codegen = context.tasks.codegen(arm)
        for kernel in codegen.kernels() if codegen else []:
            last = kernel.split("::")[-1]
            homes = [s.path for s in context.kernel_sources if re.search(rf"\b{last}\b\s*\(", s.text)]
            if homes and not included & set(homes):
                missing.append(f"task_header.cuh (the file of {last})")
        if missing:
            differences.append(f"{arm.name}: missing from {', '.join(missing)}")
            places.append(arm.evidence)
    unnamed = sorted(arms.keys() - {r.task for r in context.registrations})
    whole = [a for a in arms.values() if a.task in context.printed and (not a.register or context.tasks.defined(a))]
    lame = sorted(arms.keys() - {a.name for a in whole})
    note = f"{len(whole)} of {len(arms)} dispatch arms are complete" + (f" (not: {', '.join(lame)})" if lame else "")
    note += f"; no wrapper registers {', '.join(unnamed)}" if unnamed else ""
    return judge(
        "wrapper, dispatch, enum, declaration, generator, printed name and include exist for each task",
        "; ".join(sorted(set(differences))) or f"all sites of {len(_chain_arms(context))} tasks",
        differences,
        places or [_chain_arms(context)[0].evidence],
        note=note,
    )


def _included(context: Context) -> set[str]:
    """Files that the task headers (one a GPU family) include, directly or not."""
    seen: set[str] = set()
    waiting = [path for path in context.mpk.under(KERNELS, ".cuh") if posixpath.basename(path) == "task_header.cuh"]
    if not waiting:
        raise NotFound("anchor-absent", f"{KERNELS}: no task_header.cuh")
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        text = without_comments(context.mpk.file(path).text)
        for name in re.findall(r'^\s*#\s*include\s+"([^"\n]+)"', text, re.MULTILINE):
            options = (posixpath.join(posixpath.dirname(path), name), posixpath.join(posixpath.dirname(KERNELS), name))
            waiting += [found for option in options if context.mpk.has(found := posixpath.normpath(option))]
    return seen


def tensors_counted(context: Context) -> Finding:
    differences, places = [], []
    for r in context.registrations:
        arm = context.tasks.arms.get(r.task)
        if arm is None or arm.inputs < 0:
            continue
        total = arm.inputs + arm.outputs
        if not r.inputs - r.optional <= total <= r.inputs:
            differences.append(
                f"{r.task}: {r.wrapper} attaches {r.inputs} tensors, graph.cc counts {arm.inputs} + {arm.outputs}"
            )
            places += [r.evidence, arm.evidence]
    first = _chain_arms(context)[0]
    return judge(
        "tensors attached in Python = inputs + outputs in graph.cc",
        "; ".join(sorted(set(differences))) or f"equal for {len(context.registrations)} registrations",
        differences,
        places or [first.evidence],
    )


def pointers_in_range(context: Context) -> Finding:
    differences, places = [], []
    for arm in _chain_arms(context):
        codegen = context.tasks.codegen(arm)
        if codegen is None:
            continue  # K01 tells
        for kind, count in (("input", arm.inputs), ("output", arm.outputs)):
            highest = codegen.highest(kind)
            if highest >= count:
                differences.append(f"{arm.name}: generated code uses {kind} {highest}, graph.cc counts {count}")
                places += [arm.evidence, codegen.evidence]
    arms = _chain_arms(context)
    return judge(
        "the highest pointer used is below the count in graph.cc",
        "; ".join(sorted(set(differences))) or f"so for {len(arms)} tasks",
        differences,
        places or [arms[0].evidence],
    )


def outputs_one_way(context: Context) -> Finding:
    """Both conventions, (N, 1) and (N+1, 0), are in use; a task must keep to its own."""
    differences, places = [], []
    for arm in _chain_arms(context):
        codegen = context.tasks.codegen(arm)
        if codegen is None or not codegen.lines:
            continue
        if arm.outputs == 0 and codegen.highest("output") >= 0:
            differences.append(f"{arm.name}: counts no outputs, and its code uses output {codegen.highest('output')}")
        elif arm.outputs == 0 and not codegen.written_inputs():
            differences.append(f"{arm.name}: counts no outputs, and its code writes to none of its inputs")
        elif arm.outputs > 0 and codegen.highest("output") < 0 and "output" not in codegen.text:
            differences.append(f"{arm.name}: counts {arm.outputs} outputs, and its code uses none")
        else:
            continue
        places += [arm.evidence, codegen.evidence]
    arms = _chain_arms(context)
    return judge(
        "a task that counts no outputs writes through its inputs, any other through its outputs",
        "; ".join(sorted(set(differences))) or f"so for {len(arms)} tasks",
        differences,
        places or [arms[0].evidence],
    )


#: Tensors of a prefill kernel by its wrapper's argument: what moves with the request, and the widths multiplied.
_OFFSETS = {
    "q_nope": ("tokens", {"num_heads", "d_ckv"}),
    "q_pe": ("tokens", {"num_heads", "d_kpe"}),
    "ckv": ("window", {"d_ckv"}),
    "kpe": ("window", {"d_kpe"}),
    "output": ("tokens", {"num_heads", "d_v"}),
}


def _attached(context: Context, wrapper: str) -> list[str]:
    """Names of the tensors that a wrapper attaches, in order."""
    source = context.wrapper_source
    calls = source.calls("new_input", source.method(wrapper))
    return [ast.unparse(call.args[0]) for call in calls if call.args]


def _pointer_offsets(text: str) -> dict[int, str]:
    """Per input: what is added to its pointer (all of it, to the end of the statement)."""
    flat = " ".join(text.split())
    return {
        int(i): " ".join(offset.split()) for i, offset in re.findall(r"input_ptrs\[(\d+)\]\)\s*\+\s*([^;]+);", flat)
    }


def request_offsets(context: Context) -> Finding:
    differences, places = [], []
    for layer in layers_called(context.builder):
        if not re.match(r"mla_(prefill(_absorbed)?|unified)_layer$", layer):
            continue
        for arm in context.arms_of(layer):
            codegen = context.codegen(arm)
            places.append(codegen.evidence)
            offsets = _pointer_offsets(codegen.text)
            for index, name in enumerate(_attached(context, layer)):
                if name not in _OFFSETS:
                    continue
                moves, widths = _OFFSETS[name]
                words = set(re.findall(r"[A-Za-z_]\w*", offsets.get(index, "")))
                by_tokens, by_window = any(w.startswith("qo_") for w in words), "MPK_MAX_SEQ_LENGTH" in words
                used = {w for w in words if w in {"num_heads", "d_ckv", "d_kpe", "d_v", "seq_len"}}
                if (moves == "tokens") != by_tokens or (moves == "window") != by_window or used != widths:
                    due = " * ".join(
                        [{"tokens": "qo_indptr", "window": "batch * MPK_MAX_SEQ_LENGTH"}[moves], *sorted(widths)]
                    )
                    differences.append(f"{arm.name}: {name} is offset by {offsets.get(index) or 'nothing'}, {due} due")
    if not places:
        raise NotFound("anchor-absent", f"{WRAPPERS}: no prefill layer with per-request tensors is called")
    return judge(
        "each request's Q, KV and output start at its own tokens and its own window",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        places,
    )


def metadata_axes(context: Context) -> Finding:
    """The field with which generated code picks the request comes from the grid axis that counts requests."""
    differences, places = [], []
    for arm in context.attention_arms:
        codegen = context.codegen(arm)
        field = _batch_field(codegen.text)
        if field is None:
            continue
        set_by = [s for s in context.settings.get(arm.task, []) if s.field == field]
        if not set_by:
            continue  # K08 tells
        axis = re.fullmatch(r"bid\.([xyz])", set_by[-1].value)
        grids = _grids(context, arm)
        places += [set_by[-1].evidence, codegen.evidence]
        if axis is None:
            raise NotFound("ambiguous", f"{set_by[-1].evidence.place}: {field} = {set_by[-1].value} is no grid axis")
        extents = [grid["xyz".index(axis[1])] for grid, _ in grids if len(grid) == 3]
        if extents and not any("max_num_batched_requests" in extent for extent in extents):
            differences.append(
                f"{arm.name}: {field} is {set_by[-1].value}, whose extent is {extents[0]}, not the requests"
            )
    if not places:
        raise NotFound("anchor-absent", "no attention task picks its request by metadata that runtime.cc sets")
    return judge(
        "the metadata field used as the request is the grid axis whose extent is max_num_batched_requests",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        places,
    )


def _batch_field(text: str) -> str | None:
    """The metadata field whose value indexes qo_indptr or paged_kv_indptr in generated code."""
    flat = " ".join(text.split())
    for name in re.findall(r"(?:qo_indptr|paged_kv_indptr)_buffer\[\s*(\w+)\s*\]", flat):
        if found := re.search(rf"\bint {name} = task_desc->task_metadata\.(\w+)", flat):
            return found[1]
    return None


def _grids(context: Context, arm: Arm) -> list[tuple[tuple[str, ...], Evidence]]:
    """grid_dim as written, in the wrapper or at each place where the builder calls it."""
    found: list[tuple[tuple[str, ...], Evidence]] = []
    layers = layers_called(context.builder)
    for r in context.chain:
        if r.task != arm.name:
            continue
        if r.grid:
            found.append((r.grid, r.evidence))
            continue
        if helper := _helper_grid(context, r.wrapper):
            found.append((helper, r.evidence))
            continue
        for call in layers.get(r.wrapper, []):
            grid = argument(call, "grid_dim")
            if isinstance(grid, ast.Tuple):
                found.append((tuple(ast.unparse(part) for part in grid.elts), context.builder.evidence(call)))
    return found


def _helper_grid(context: Context, wrapper: str) -> tuple[str, ...]:
    """grid_dim of the one helper that a wrapper hands over to (`_mla_..._layer`)."""
    source = context.wrapper_source
    method = source.method(wrapper)
    for call in (n for n in ast.walk(method) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
        if call.func.attr.startswith("_") and call.func.attr.endswith("_layer"):  # type: ignore[attr-defined]
            assigned = source.assignments("grid_dim", source.method(call.func.attr))  # type: ignore[attr-defined]
            if len(assigned) == 1 and isinstance(assigned[0].value, ast.Tuple):
                return tuple(ast.unparse(part) for part in assigned[0].value.elts)
    return ()


def metadata_set(context: Context) -> Finding:
    differences, places, others = [], [], []
    for arm in _chain_arms(context):
        codegen = context.tasks.codegen(arm)
        if codegen is None:
            continue
        fields = {s.field for s in context.settings.get(arm.task, [])}
        missing = sorted(codegen.metadata() - fields)
        if _METADATA_TASKS.match(arm.name):
            places += [s.evidence for s in context.settings.get(arm.task, [])]
            if missing:
                differences.append(
                    f"{arm.name}: generated code reads {', '.join(missing)}, which runtime.cc never sets for it"
                )
                places.append(codegen.evidence)
        elif missing:
            others.append(arm.name)
    if not places:
        raise NotFound("anchor-absent", "src/kernel/runtime.cc: no metadata is set for any MLA or MoE task")
    note = f"{', '.join(sorted(others))}: read metadata that no condition naming them sets" if others else ""
    return judge(
        "runtime.cc sets every metadata field that an MLA or MoE task's code reads",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        places,
        note=note,
    )


def windows_apart(context: Context) -> Finding:
    """Gathered KV: a window's start must not depend on the request's own length, or windows overlap."""
    differences, places, wrong = [], [], []
    for layer in layers_called(context.builder):
        if not re.match(r"mla_kv_gather\w*_layer$", layer):
            continue
        for arm in context.arms_of(layer):
            codegen = context.codegen(arm)
            places.append(codegen.evidence)
            for line in codegen.lines:
                found = re.search(r"auto \*(\w+) = [^;]*\bbi_ \* (\w+)", " ".join(line.filled.split()))
                if found and "MPK_MAX_SEQ_LENGTH" not in line.filled:
                    starts = f"{found[1].rstrip('_')} starts at bi_ * {found[2]}, the request's own length"
                    differences.append(f"{arm.name}: {starts}")
                    wrong.append(context.tasks.register.file.evidence(line.line, arm.register))
    if not places:
        raise NotFound("anchor-absent", f"{WRAPPERS}: no KV gather layer is called")
    return judge(
        "each request's gathered KV starts at a fixed stride (MPK_MAX_SEQ_LENGTH)",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        wrong or places,
    )


def same_grid_everywhere(context: Context) -> Finding:
    differences, places = [], []
    for arm in context.attention_arms:
        grids = [(grid, where) for grid, where in _grids(context, arm) if len(grid) == 3]
        for axis, name in enumerate("xyz"):
            extents = sorted({grid[axis] for grid, _ in grids})
            if len(extents) > 1 and any("max_num_batched_requests" in extent for extent in extents):
                differences.append(f"{arm.name}: grid.{name} is {' in one place, '.join(extents)} in another")
                places += [where for _, where in grids]
    if not places:
        places = [context.attention_arms[0].evidence]
    return judge(
        "every call of an attention layer counts the requests on the same axis",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        places,
    )


RULES = [
    Rule(
        "K01",
        "a task is registered at all its sites",
        "crash",
        "A name, enum, generator, include or printed name that is missing is found at run time, if at all.",
        registered_everywhere,
    ),
    Rule(
        "K02",
        "tensors attached equal inputs plus outputs",
        "crash",
        "A count that differs gives an invalid global read on the GPU.",
        tensors_counted,
    ),
    Rule(
        "K03",
        "generated code uses only pointers that are there",
        "crash",
        "An index past the end reads another task's descriptor.",
        pointers_in_range,
    ),
    Rule(
        "K04",
        "a task keeps to one output convention",
        "crash",
        "(N, 1) and (N+1, 0) exist side by side; a mixture points nowhere.",
        outputs_one_way,
    ),
    Rule(
        "K05",
        "per-request offsets are right",
        "wrong-output",
        "A wrong offset lets request 2 read request 1's tokens.",
        request_offsets,
    ),
    Rule(
        "K07",
        "the request's metadata comes from the requests' axis",
        "wrong-output",
        "Taken from another axis, blocks work on requests that are not there.",
        metadata_axes,
    ),
    Rule(
        "K08",
        "all metadata that a task reads is set",
        "wrong-output",
        "An arm that is missing leaves request 0, silently.",
        metadata_set,
    ),
    Rule(
        "K13",
        "gathered KV windows do not overlap",
        "wrong-output",
        "With a start of request times its own length, a short request's window lies within a long one's.",
        windows_apart,
    ),
    Rule(
        "K14",
        "all calls of an attention layer agree on the requests' axis",
        "wrong-output",
        "A call that counts one request serves request 0 only.",
        same_grid_everywhere,
    ),
]
