"""Pillar W: the weights that reach the builder are vLLM's, absorbed and sharded right, on every load path."""

from __future__ import annotations

import ast
import re
from typing import Any

from conformance.drift import geometry as g
from conformance.drift.context import CONVERT, DEMO, Context
from conformance.drift.finding import Evidence, Finding, NotFound, Rule, judge
from conformance.drift.locate.python import PythonSource, argument, called, key_text

#: Head sizes for slices of kv_b_proj: primes, so that no wrong bound comes out right.
_NOPE, _V = 5, 7
#: Relative L2 error of absorbed against unabsorbed attention with bf16 read as fp32; measured clean: under 1e-6.
TOLERANCE = 1e-5
#: vLLM splits the vocabulary over ranks; a full copy on every rank computes the same numbers.
_DEFERRABLE = {"model.embed_tokens", "lm_head", "shared_head.head"}
_Shards = dict[str, tuple[int | None, Evidence]]


def absorb_loops(demo: PythonSource) -> list[ast.For]:
    """Loops over layers that absorb kv_b_proj into q_b_proj, in source order."""
    found = [n for n in ast.walk(demo.tree) if isinstance(n, ast.For) and demo.calls("absorb_kv_into_q", n)]
    if not found:
        raise NotFound("anchor-absent", f"{demo.path}: no loop that calls absorb_kv_into_q")
    return sorted(found, key=lambda loop: loop.lineno)


def _stored(demo: PythonSource, loop: ast.AST) -> dict[str, ast.AST]:
    """Keys of state_dict that a loop assigns: `self_attn.q_b_proj` -> the assignment."""
    found: dict[str, ast.AST] = {}
    for node in ast.walk(loop):
        for target in _targets(node):
            if isinstance(target, ast.Subscript) and ast.unparse(target.value) == "state_dict":
                text = _key(demo, loop, target.slice)
                if text:
                    found.setdefault(re.sub(r"\.weight$", "", text.split("}")[-1]), node)
    return found


def _targets(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns, tuples taken apart."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [part for t in targets for part in (t.elts if isinstance(t, ast.Tuple) else [t])]


def _key(source: PythonSource, scope: ast.AST, node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        assigned = source.values(node.id, scope)
        return key_text(assigned[0][1]) if assigned else None
    return key_text(node)


def forms_present(context: Context) -> Finding:
    demo = context.demo
    due = {"q_b_proj": "fused absorbed", "q_b_nope": "split absorbed", "q_b_pe": "split absorbed"}
    if context.profile.has("unabsorbed kernel"):
        due |= {"kv_b_k": "split unabsorbed", "kv_b_v": "split unabsorbed", "o_proj_original": "unabsorbed output"}
    differences, places = [], []
    for loop in absorb_loops(demo):
        stored = _stored(demo, loop)
        places.append(demo.evidence(loop))
        differences += [f"{name} ({form}) is not produced" for name, form in due.items() if name not in stored]
        places += [demo.evidence(stored[name]) for name in due if name in stored]
    note = "" if context.profile.has("unabsorbed kernel") else "no unabsorbed prefill kernel is registered"
    actual = "; ".join(sorted(set(differences))) or "all of them"
    return judge(f"per layer: {', '.join(due)}", actual, differences, places, note=note)


def _absorbed(context: Context) -> list[dict[str, Any]]:
    """Results of the lifted absorption loops, by loop and head sizes. Raises NotFound where none ran."""
    found: list[dict[str, Any]] = context.probe("weights")["absorbed"]
    ran = [result for result in found if "error" not in result]
    if not ran:
        words = f"{DEMO}:{found[0]['line']}: {found[0]['error']}" if found else f"{DEMO}: no absorption loop"
        raise NotFound("not-evaluated", words)
    return ran


def nope_rows(context: Context) -> Finding:
    source = context.kernel("mla_prefill_sm100_task_impl")
    latent = source.constants().get("PF_D_CKV")
    if latent is None:
        raise NotFound("anchor-absent", f"{source.path}: no constexpr PF_D_CKV")
    differences, places = [], []
    for result in _absorbed(context):
        rows = result["rows"].get("q_b_nope")
        due = latent if context.profile.has("absorbed prefill") or context.profile.has("unified") else result["nope"]
        if rows is None:
            differences.append("q_b_nope is not produced")
        elif rows != due:
            differences.append(f"q_b_nope has {rows} rows a head, its consumer reads {due}")
        places.append(context.demo.at(result["line"]))
    consumer = source.evidence(source.constant_place("PF_D_CKV"), "PF_D_CKV")
    return judge(
        f"{latent} rows a head, as the prefill kernel reads",
        "; ".join(differences) or f"{latent} rows a head",
        differences,
        [*places, consumer],
    )


def fused_rows(context: Context) -> Finding:
    differences, places = [], []
    for result in _absorbed(context):
        rows = result["rows"].get("q_b_proj")
        if rows != g.ABSORBED_HEAD_DIM:
            differences.append(f"q_b_proj has {rows} rows a head, {g.ABSORBED_HEAD_DIM} due")
        places.append(context.demo.at(result["line"]))
    due = f"[H*{g.ABSORBED_HEAD_DIM}, q_lora]"
    return judge(due, "; ".join(differences) or due, differences, places)


def draft_layer_absorbed(context: Context) -> Finding:
    demo = context.demo
    reference = context.reference.layers_of_mtp
    differences, places = [], []
    for loop in absorb_loops(demo):
        name = ast.unparse(loop.iter)
        made = [a.lineno for a in demo.assignments(name) if a.lineno < loop.lineno]
        appended = [
            call
            for call in demo.calls("append")
            if isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value) == name
            and max(made, default=0) <= call.lineno < loop.lineno
        ]
        right = [call for call in appended if call.args and ast.unparse(call.args[0]) == "num_layers"]
        guarded = [
            c for c in right if any("mtp" in ast.unparse(p.test) for p in demo.parents(c) if isinstance(p, ast.If))
        ]
        if not guarded:
            differences.append(f"a loop over {name} leaves out the draft's layer (num_layers) when MTP is on")
        places += [demo.evidence(call) for call in guarded] or [demo.evidence(loop)]
    actual = "; ".join(sorted(set(differences))) or f"appended before each of {len(places)} loops"
    return judge(
        "the draft's layer, at index num_layers, is absorbed too", actual, differences, places, reference.evidence
    )


def absorbed_equals_unabsorbed(context: Context) -> Finding:
    """By the slice that becomes W_UV; with --execute also by numbers: the lifted code, on tiny dimensions."""
    demo = context.demo
    order = context.reference.kv_b_order
    sizes = {"qk_nope_head_dim": _NOPE, "v_head_dim": _V}
    start, spans_due = 0, {}
    for name, size in order.value:
        if size not in sizes:
            raise NotFound("ambiguous", f"{order.evidence[0].place}: {name} has the size {size!r}, which is not known")
        spans_due[name] = (start, start + sizes[size])
        start += sizes[size]
    differences, places, found = [], [], []
    for loop in absorb_loops(demo):
        for node, span in _value_rows(demo, loop):
            places.append(demo.evidence(node))
            found.append(span)
            if span != spans_due["W_UV"]:
                differences.append(
                    f"W_UV is taken from rows {_words(span)} of a head's kv_b_proj, {_words(spans_due['W_UV'])} due"
                )
    if not found and "weights" not in context.probes:
        raise NotFound(
            "anchor-absent", f"{demo.path}: no slice of kv_b_proj that becomes W_UV (--execute tells by numbers)"
        )
    actual = "; ".join(sorted(set(differences))) or (f"W_UV = rows {_words(found[0])}" if found else "by numbers only")
    note = ""
    if "weights" in context.probes:
        worst = {"score": 0.0, "output": 0.0}
        for result in _absorbed(context):
            if "mismatch" in result:
                differences.append("the absorbed weights do not multiply with latent attention")
                continue
            for what in worst:
                error = result[f"{what}_error"]
                if error is None:
                    continue
                worst[what] = max(worst[what], error)
                if not error <= TOLERANCE:
                    differences.append(
                        f"{what}s of absorbed attention differ from the unabsorbed ones (relative L2 > 1e-5)"
                    )
        failed = [r for r in context.probe("weights")["absorbed"] if "error" in r]
        if failed and not differences:
            raise NotFound("not-evaluated", f"{DEMO}:{failed[0]['line']}: {failed[0]['error']}")
        note = f"relative L2 error on tiny dimensions: scores {worst['score']:.2e}, output {worst['output']:.2e}"
        places += [demo.at(result["line"]) for result in _absorbed(context) if not places]
    return judge(
        f"W_UV = rows {_words(spans_due['W_UV'])}; absorbed attention equals unabsorbed (relative L2 <= 1e-5)",
        actual,
        differences,
        places,
        order.evidence,
        note,
    )


def _value_rows(demo: PythonSource, loop: ast.For) -> list[tuple[ast.AST, tuple[int, int]]]:
    """(assignment, [start, stop) rows of one head) of everything named W_UV in a loop."""
    names: dict[str, Any] = {}
    for spelling in ("mp[{!r}]", "params[{!r}]", "config[{!r}]"):
        names |= {spelling.format("qk_nope_head_dim"): _NOPE, spelling.format("v_head_dim"): _V}
    found: list[tuple[ast.AST, tuple[int, int]]] = []
    for node in (n for n in ast.walk(loop) if isinstance(n, ast.Assign)):
        target, value = node.targets[0], node.value
        targets = [ast.unparse(t) for t in target.elts] if isinstance(target, ast.Tuple) else [ast.unparse(target)]
        if not any(name.endswith("W_UV") for name in targets):
            continue
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Tuple):
            rows = next((part for part in value.slice.elts[1:] if isinstance(part, ast.Slice)), None)
            if rows is not None:
                lower = demo.resolve(rows.lower, names, loop) if rows.lower else 0
                upper = demo.resolve(rows.upper, names, loop) if rows.upper else _NOPE + _V
                found.append((node, (lower, upper)))
        elif isinstance(value, ast.Call) and called(value) == "split" and value.args:
            parts = value.args[0].elts if isinstance(value.args[0], ast.List | ast.Tuple) else []
            sizes = [demo.resolve(part, names, loop) for part in parts]
            at = next(i for i, name in enumerate(targets) if name.endswith("W_UV"))
            found.append((node, (sum(sizes[:at]), sum(sizes[: at + 1]))))
        elif isinstance(value, ast.Call) and called(value) == "narrow" and len(value.args) == 3:
            start, length = (demo.resolve(part, names, loop) for part in value.args[1:])
            found.append((node, (start, start + length)))
    return sorted(found, key=lambda item: item[0].lineno)  # type: ignore[attr-defined]


def _words(span: tuple[int, int]) -> str:
    known = {0: "0", _NOPE: "nope", _V: "v", _NOPE + _V: "nope+v"}
    return f"[{known.get(span[0], span[0])}, {known.get(span[1], span[1])})"


def shard_rules(source: PythonSource) -> list[tuple[re.Pattern[str], int | None, Evidence]]:
    """The longest list of (regex, dimension) in a source."""
    best: list[tuple[re.Pattern[str], int | None, Evidence]] = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.List):
            continue
        rules = []
        for part in node.elts:
            match part:
                case ast.Tuple(elts=[ast.Constant(value=str(pattern)), ast.Constant(value=dim)]) if (
                    dim is None or isinstance(dim, int)
                ):
                    try:
                        rules.append((re.compile(pattern), dim, source.evidence(part)))
                    except re.error as error:
                        raise NotFound("unparsed", f"{source.path}:{part.lineno}: shard rule: {error}") from None
        best = max(best, rules, key=len)
    if not best:
        raise NotFound("anchor-absent", f"{source.path}: no list of (regex, dimension) shard rules")
    return best


def _dimension(
    rules: list[tuple[re.Pattern[str], int | None, Evidence]], name: str
) -> tuple[int | None, Evidence] | None:
    key = name if name.startswith(("model.", "lm_head")) else f"model.layers.{g.FIRST_MOE_LAYER}.{name}"
    return next(((dim, where) for regex, dim, where in rules if regex.search(f"{key}.weight")), None)


def sharded_as_reference(context: Context) -> Finding:
    rules = shard_rules(context.demo)
    differences, places, reference, harmless = [], [], [], []
    for name, due in sorted(context.reference.shards.items()):
        found = _dimension(rules, name)
        actual = found[0] if found else None
        if actual == due.value:
            continue
        differences.append(f"{name}: sharded on {_dim(actual)}, {_dim(due.value)} due")
        harmless.append(name in _DEFERRABLE and actual is None)
        places += [found[1]] if found else []
        reference += due.evidence
    if not differences:
        places = [rules[0][2]]
        reference = context.reference.row_parallel.evidence
    if "weights" in context.probes:
        for name, problem in sorted(context.probe("weights")["shards"].items()):
            differences.append(f"{name}: {problem}")
            harmless.append(False)
    return judge(
        "each weight sharded on the dimension on which vLLM's layer class shards it",
        "; ".join(differences) or "as vLLM",
        differences,
        places,
        reference,
        "the vocabulary replicated on every rank gives the same numbers" if any(harmless) else "",
        deferred=all(harmless),
    )


def _dim(value: int | None) -> str:
    return "no dimension (replicated)" if value is None else f"dimension {value}"


def builder_shard_rules(context: Context) -> Finding:
    ours = shard_rules(context.builder)
    demo = shard_rules(context.demo)
    differences = [
        f"{name}: {_dim(a[0])} in the builder, {_dim(b[0])} in the demo"
        for name in sorted(context.reference.shards)
        if (a := _dimension(ours, name)) and (b := _dimension(demo, name)) and a[0] != b[0]
    ]
    return judge(
        "the builder's list agrees with the demo's",
        "; ".join(differences) or "they agree",
        differences,
        [ours[0][2], demo[0][2]],
    )


def converted_equals_in_memory(context: Context) -> Finding:
    demo, convert = context.demo, context.convert
    in_memory, on_disk = shard_rules(demo), shard_rules(convert)
    differences: list[str] = []
    places: list[Evidence] = []
    for name in sorted({*context.reference.shards, "mlp.experts.0.gate_proj", "mlp.experts.0.down_proj"}):
        fused = {"mlp.experts.0.gate_proj": "mlp.experts.w13", "mlp.experts.0.down_proj": "mlp.experts.w2"}
        a, b = _dimension(in_memory, fused.get(name, name)), _dimension(on_disk, name)
        if name.endswith(("experts.w13", "experts.w2", "gate_up_proj")):
            continue  # made after loading from what the names above stand for
        less = 1 if name in fused else 0  # the expert dimension is not there yet
        mine = None if a is None or a[0] is None else a[0] - less
        if b is not None and a is not None and mine != b[0]:
            differences.append(f"{name}: converted on {_dim(b[0])}, in memory on {_dim(mine)}")
            places += [a[1], b[1]]
    loops = absorb_loops(demo)
    stored = set().union(*(_stored(demo, loop) for loop in loops))
    main = next((f for f in convert.functions() if convert.calls("absorb_kv_into_q", f)), None)
    if main is None:
        raise NotFound("anchor-absent", f"{CONVERT}: no function that calls absorb_kv_into_q")
    written = _written_keys(convert, main)
    for name in sorted(stored - written - {"q_b_proj_scale_inv"}):
        if not name.endswith("_scale_inv"):
            differences.append(
                f"{name}: {'folded' if name == 'o_proj' else 'produced'} in memory, not by the converter"
            )
    ranged = [n for n in ast.walk(main) if isinstance(n, ast.For) and convert.calls("absorb_kv_into_q", n)]
    for loop in ranged:
        text = ast.unparse(loop.iter)
        if not re.search(r"num_layers\s*\+|mtp|nextn", text):
            differences.append("the draft's layer is not absorbed by the converter")
            places.append(convert.evidence(loop))
    actual = "; ".join(sorted(set(differences))) or "the same"
    return judge(
        "the same keys, layers and shard dimensions whichever way the weights are loaded",
        actual,
        differences,
        places or [demo.evidence(loop) for loop in loops],
    )


def _written_keys(source: PythonSource, function: ast.AST) -> set[str]:
    """Last parts of keys of `weights[...]` that a function assigns: {"q_b_proj"}."""
    found = set()
    for node in ast.walk(function):
        for target in _targets(node):
            if isinstance(target, ast.Subscript) and (text := _key(source, function, target.slice)):
                found.add(re.sub(r"\.weight$", "", text).rsplit(".", 1)[-1].split("}")[-1])
    return found


def gate_and_up_apart(context: Context) -> Finding:
    """By text: the shard loop halves w13 and shards each half; with --execute also by numbers."""
    demo = context.demo
    reference = context.reference.gate_and_up
    loops = [
        n
        for n in ast.walk(demo.tree)
        if isinstance(n, ast.For) and "state_dict" in ast.unparse(n.iter) and demo.calls("shard_tensor", n)
    ]
    if not loops:
        raise NotFound("anchor-absent", f"{demo.path}: no loop over state_dict that calls shard_tensor")
    differences, places = [], []
    for loop in loops:
        branch = [
            n
            for n in ast.walk(loop)
            if isinstance(n, ast.If) and "w13" in ast.unparse(n.test) and _halves(demo, n.body)
        ]
        places.append(demo.evidence(branch[0] if branch else loop))
        if not branch:
            differences.append("w13 is sharded whole: a rank gets all gates or all ups instead of its part of both")
    if "weights" in context.probes and (problem := context.probe("weights")["shards"].get("mlp.experts.w13")):
        differences.append(f"w13: {problem}")
    return judge(
        "w13 is split into gate and up before it is sharded",
        "; ".join(sorted(set(differences))) or "split first",
        differences,
        places,
        reference.evidence,
    )


def _halves(demo: PythonSource, body: list[ast.stmt]) -> bool:
    """Whether statements shard two halves and join them."""
    shards = [c for s in body for c in demo.calls("shard_tensor", s)]
    return len(shards) >= 2 and any(argument(c, "tensors", 0) is not None for s in body for c in demo.calls("cat", s))


RULES = [
    Rule(
        "W01",
        "every form of the absorbed weights exists for every layer",
        "crash",
        "A kernel whose weights were never made reads a key that is not there, or another form's rows.",
        forms_present,
    ),
    Rule(
        "W02",
        "q_b_nope has the rows its consumer reads",
        "wrong-output",
        "A row count that differs from the kernel's shifts every head but the first.",
        nope_rows,
        "weights",
    ),
    Rule(
        "W03",
        "q_b_proj is [H*576, q_lora] after absorption",
        "wrong-output",
        "Decode reads 576 rows a head: 512 latent, 64 rope.",
        fused_rows,
        "weights",
    ),
    Rule(
        "W04",
        "the draft's layer is absorbed too",
        "wrong-output",
        "An unabsorbed draft layer makes every drafted token garbage, and MTP slower than none.",
        draft_layer_absorbed,
    ),
    Rule(
        "W05",
        "absorbed attention equals unabsorbed attention",
        "wrong-output",
        "kv_b_proj holds W_UK, then W_UV. The wrong rows keep every shape and give fluent nonsense.",
        absorbed_equals_unabsorbed,
    ),
    Rule(
        "W06",
        "shard dimensions are those of vLLM's layer classes",
        "wrong-output",
        "A weight cut along the wrong dimension still has a shape that multiplies.",
        sharded_as_reference,
    ),
    Rule(
        "W07",
        "the builder's shard rules agree with the demo's",
        "wrong-output",
        "Two lists that must agree, and are edited one at a time.",
        builder_shard_rules,
        required=False,
    ),
    Rule(
        "W08",
        "a converted checkpoint equals the in-memory conversion",
        "wrong-output",
        "The same model must come out of both load paths.",
        converted_equals_in_memory,
    ),
    Rule(
        "W09",
        "w13 is split into gate and up before sharding",
        "wrong-output",
        "Cut whole, rank 0 holds gates only and the last rank ups only.",
        gate_and_up_apart,
    ),
]
