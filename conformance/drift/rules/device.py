"""Pillar K, second half: the device functions, by their own text: Q_LEN gates, shared memory, scales, signatures."""

from __future__ import annotations

import math
import re

from conformance.drift import geometry as g
from conformance.drift.context import KERNELS, TMA, Context
from conformance.drift.finding import Evidence, Finding, NotFound, Rule, judge
from conformance.drift.locate.arithmetic import evaluate_cxx
from conformance.drift.locate.cxx import CxxSource, split_arguments
from conformance.drift.locate.cxx_tree import walk
from conformance.drift.locate.gates import spans
from conformance.drift.locate.tasks import Arm
from conformance.drift.rules.coverage import SIZES, attention_layers, layer_domain, tp_of, uses_prefill

#: max-num-batched-tokens looked at: every value here, and what happens at the last holds above.
_TOKENS = range(1, 129)
_SCALE_TOLERANCE = 1e-6
_LOG2E = math.log2(math.e)


def q_len_covered(context: Context) -> Finding:
    """For every TP size and every max-num-batched-tokens: each Q_LEN up to it has exactly one kernel."""
    decode, prefill = attention_layers(context, "decode"), attention_layers(context, "prefill")
    unified = attention_layers(context, "unified")
    evidence: list[Evidence] = []
    differences: list[str] = []
    for tp in SIZES:

        def domains(layers: list[str], tp: int = tp) -> list[frozenset[int]]:
            found = [layer_domain(context, layer, tp) for layer in layers if tp in tp_of(layer)]
            evidence.extend(e for d in found for e in d.evidence)
            return [d.q_lens for d in found]

        short = domains(decode)
        long = domains(unified) if unified else [*short, *domains(prefill)]
        if not short and not long:
            raise NotFound("anchor-absent", f"TP{tp}: the builder calls no attention layer")
        missing: dict[int, list[int]] = {}
        double: set[int] = set()
        for tokens in _TOKENS:
            kernels = long if uses_prefill(context, tokens) else short
            for q_len in range(1, tokens + 1):
                serving = sum(q_len in served for served in kernels)
                if serving == 0:
                    missing.setdefault(q_len, []).append(tokens)
                elif serving > 1:
                    double.add(q_len)
        differences += [f"TP{tp}: {words}" for words in _gaps(missing)]
        if double:
            differences.append(f"TP{tp}: Q_LEN {spans(double)} has two kernels")
    differences += _merges_agree(context, evidence)
    words = sorted({d.split(": ", 1)[1] for d in differences})
    return judge(
        "each Q_LEN from 1 to max-num-batched-tokens has exactly one attention kernel",
        "; ".join(words) or "so, for TP1, 2, 4 and 8",
        differences,
        evidence,
    )


def _gaps(missing: dict[int, list[int]]) -> list[str]:
    """Q_LEN without a kernel, told apart: always, or only for some max-num-batched-tokens."""
    always = {q for q, tokens in missing.items() if _TOKENS[-1] in tokens}
    sometimes = {q: tokens for q, tokens in missing.items() if q not in always}
    found = [f"Q_LEN {spans(always)} has no kernel"] if always else []
    if sometimes:
        last = max(max(tokens) for tokens in sometimes.values())
        found.append(f"Q_LEN {spans(set(sometimes))} has no kernel where max-num-batched-tokens is at most {last}")
    return found


def _merges_agree(context: Context, evidence: list[Evidence]) -> list[str]:
    """Each reduce must serve what its decode serves, or it skips (or merges) what was (not) computed."""
    found = []
    for layer in attention_layers(context, "reduce"):
        tp = tp_of(layer)[0]
        partners = [name for name in attention_layers(context, "decode") if tp_of(name)[0] == tp]
        merge = layer_domain(context, layer, tp)
        evidence.extend(merge.evidence)
        for partner in partners:
            decode = layer_domain(context, partner, tp)
            if decode.q_lens != merge.q_lens:
                found.append(f"TP{tp}: {layer} serves Q_LEN {spans(merge.q_lens)}, {partner} {spans(decode.q_lens)}")
    return found


def _chain_kernels(context: Context) -> list[tuple[Arm, str, CxxSource]]:
    """(arm, device function, source) of the chain's attention tasks."""
    found = []
    for arm in context.attention_arms:
        for kernel in context.codegen(arm).kernels():
            last = kernel.split("::")[-1]
            found.append((arm, last, context.kernel(last)))
    return found


def shared_memory(context: Context) -> Finding:
    header = context.runtime_header
    budget = header.constants().get("MAX_DYNAMIC_SHARED_MEMORY_SIZE")
    if budget is None:
        raise NotFound("anchor-absent", f"{header.path}: no constexpr MAX_DYNAMIC_SHARED_MEMORY_SIZE")
    differences, places, sizes = [], [], set()
    for source in sorted({s.path: s for _, _, s in _attention_sources(context)}.values(), key=lambda s: s.path):
        for name, size in source.constants().items():
            if re.fullmatch(r"(\w+_)?SMEM_(SIZE|SZ)", name):
                places.append(source.evidence(source.constant_place(name), name))
                sizes.add(size)
                if size > budget:
                    differences.append(f"{source.path.rsplit('/', 1)[-1]}: {name} = {size:,} bytes > {budget:,}")
    if not places:
        raise NotFound("anchor-absent", f"{KERNELS}: no shared-memory size of an MLA kernel")
    budget_place = header.evidence(header.constant_place("MAX_DYNAMIC_SHARED_MEMORY_SIZE"), "budget")
    actual = "; ".join(differences) or ", ".join(f"{size:,}" for size in sorted(sizes)) + " bytes"
    return judge(f"at most {budget:,} bytes of dynamic shared memory", actual, differences, [*places, budget_place])


def _attention_sources(context: Context) -> list[tuple[Arm | None, str, CxxSource]]:
    """The chain's kernels, and those that a dispatching kernel hands over to."""
    found: list[tuple[Arm | None, str, CxxSource]] = list(_chain_kernels(context))
    for _, name, source in list(found):
        for callee in re.findall(r"\b(mla_\w+?(?:_task_impl|_main))\s*(?:<[^<>;]*>)?\s*\(", source.function(name).body):
            if callee != name:
                found.append((None, callee, context.kernel(callee)))
    return found


def siblings_alike(context: Context) -> Finding:
    patterns: dict[str, dict[str, list[Evidence]]] = {"barrier": {}, "TMEM allocation": {}}
    kernels = [(n, s) for _, n, s in _attention_sources(context) if re.search(r"_tp\d_main$", n)]
    if len({s.path for _, s in kernels}) < 2:
        raise NotFound("anchor-absent", f"{KERNELS}: fewer than two TP variants of the decode kernel")
    for source in {s.path: s for _, s in kernels}.values():
        whole = source.text
        barriers = sorted(set(re.findall(r"\bbar\.sync (\d+, \d+)", whole))) or ["none"]
        allocations = sorted(set(re.findall(r"\btcgen05\.alloc[\w.:]*", whole))) or ["none"]
        at = max(0, whole.find("bar.sync"))
        patterns["barrier"].setdefault(", ".join(barriers), []).append(source.evidence(at, "bar.sync"))
        at = max(0, whole.find("tcgen05.alloc"))
        patterns["TMEM allocation"].setdefault(", ".join(allocations), []).append(source.evidence(at, "tcgen05.alloc"))
    differences = []
    for what, values in patterns.items():
        if len(values) > 1:
            words = [
                f"{value} in {', '.join(sorted(e.path.rsplit('/', 1)[-1] for e in where))}"
                for value, where in sorted(values.items())
            ]
            differences.append(f"{what}: {'; '.join(words)}")
    actual = "; ".join(differences) or ", ".join(f"{what} {next(iter(v))}" for what, v in patterns.items())
    return judge(
        "the TP variants of decode share one barrier and one TMEM allocation",
        actual,
        differences,
        [e for values in patterns.values() for where in values.values() for e in where],
    )


def softmax_scales(context: Context) -> Finding:
    reference = context.reference.softmax_scale
    due = reference.value
    tree = context.tasks.register
    differences: list[str] = []
    places: list[Evidence] = []
    wrong: list[Evidence] = []
    sites = 0
    for name, definitions in sorted(tree.functions().items()):
        if not re.match(r"register_mla_\w+_task$", name) or "sqrtf" not in tree.words(definitions[0]):
            continue
        known: dict[str, float] = {}
        used = {w for line in tree.emitted(definitions[0]) if "$f" in line.text for w in line.arguments}
        for node in walk(definitions[0]):
            if node.type != "init_declarator":
                continue
            variable = tree.words(node.child_by_field_name("declarator")).strip()
            try:
                known[variable] = float(evaluate_cxx(tree.words(node.child_by_field_name("value")), known))
            except (NotFound, TypeError, ValueError):
                continue
            if variable not in used:
                continue
            sites += 1
            value = known[variable]
            right = any(abs(value / (due * factor) - 1) <= _SCALE_TOLERANCE * 10 for factor in (1.0, _LOG2E))
            (wrong if not right else places).append(tree.evidence(node, name))
            if not right:
                base = value / _LOG2E if "log2" in variable else value
                plain = abs(base * math.sqrt(g.QK_NOPE_HEAD_DIM + g.QK_ROPE_HEAD_DIM) - 1) < 1e-5
                what = " (mscale^2 is missing)" if plain else ""
                differences.append(f"{name.removeprefix('register_').removesuffix('_task')}: scale {base:.7f}{what}")
    if not sites:
        raise NotFound("anchor-absent", f"{tree.path}: no MLA generator emits a softmax scale")
    actual = "; ".join(sorted(set(differences))) or f"{due:.7f} at {sites} sites"
    return judge(
        f"{due:.7f} at every site (qk_head_dim^-0.5 * mscale^2)",
        actual,
        differences,
        wrong or places,
        reference.evidence,
    )


def descriptors_match(context: Context) -> Finding:
    """Arguments generated for a device function are as many as it has parameters, and its TMA descriptors too."""
    differences, places = [], []
    checked = 0
    for arm, name, source in _chain_kernels(context):
        codegen = context.codegen(arm)
        given = _call_arguments(codegen.unfilled, name)
        parameters = split_arguments(source.function(name).parameters)
        if given is None:
            raise NotFound("unparsed", f"{codegen.evidence.place}: the generated call of {name} does not end")
        checked += 1
        needed = [p for p in parameters if "=" not in p]
        maps = sum("CUtensorMap" in p for p in parameters)
        given_maps = sum("tma_desc_ptrs" in a for a in given)
        places += [codegen.evidence, source.evidence(source.function(name).start, name)]
        if not len(needed) <= len(given) <= len(parameters):
            differences.append(f"{arm.name}: {len(given)} arguments generated, {name} takes {len(parameters)}")
        elif maps != given_maps:
            differences.append(f"{arm.name}: {given_maps} TMA descriptors generated, {name} takes {maps}")
        if maps and context.mpk.has(TMA) and f"case {arm.task}" not in context.mpk.file(TMA).text:
            differences.append(f"{arm.name}: takes TMA descriptors, and tma.cuh makes none for {arm.task}")
    return judge(
        "generated calls have the arguments and TMA descriptors that the device function takes",
        "; ".join(sorted(set(differences))) or f"so for {checked} calls",
        differences,
        places,
    )


def _call_arguments(text: str, name: str) -> list[str] | None:
    """The arguments of a generated call of a device function (the last, where variants share them); None where it
    does not end."""
    calls = list(re.finditer(rf"\b{name}\s*(?:<[^;()]*>)?\s*\(", text))
    if not calls:
        return None
    found = calls[-1]
    depth = 0
    for at in range(found.end() - 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return split_arguments(text[found.end() : at])
    return None


RULES = [
    Rule(
        "K06",
        "every Q_LEN has exactly one attention kernel",
        "wrong-output",
        "Where no kernel works, attention output is what an earlier step left; where two do, the last one wins.",
        q_len_covered,
    ),
    Rule(
        "K09",
        "shared memory fits its budget",
        "crash",
        "Beyond the budget the kernel writes past its shared memory, at run time only.",
        shared_memory,
    ),
    Rule(
        "K10",
        "TP variants share barrier and TMEM allocation",
        "hang",
        "Another barrier's count, or an allocation by one warp less, hangs the worker.",
        siblings_alike,
    ),
    Rule(
        "K11",
        "one softmax scale everywhere",
        "wrong-output",
        "Prefill and decode that scale differently give one model with two attentions.",
        softmax_scales,
    ),
    Rule(
        "K12",
        "generated calls match device signatures",
        "crash",
        "A descriptor more or less moves every argument behind it.",
        descriptors_match,
    ),
]
