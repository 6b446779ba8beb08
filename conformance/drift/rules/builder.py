"""Pillar B: the graph that the builder makes is DeepSeek-V3 as vLLM runs it, for every TP size, batch and draft."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from conformance.drift import geometry as g
from conformance.drift.context import BUILDER, Context
from conformance.drift.finding import Evidence, Finding, NotFound, Rule, judge
from conformance.drift.flow import Flow, Step
from conformance.drift.rules.coverage import decode_domain, uses_prefill

#: Steps that keep a sum a sum: they may work on partial sums before these are reduced.
_LINEAR_IN_SUMS = ("moe_mul_sum_add_layer", "elementwise_add_layer")


def traced(context: Context, wanted: Callable[[Flow], bool] = lambda flow: True) -> list[Flow]:
    """The traces that a rule looks at. Raises NotFound(not-evaluated) where one of them could not be made."""
    found = []
    for flow in context.flows:
        if isinstance(flow, str):
            raise NotFound("not-evaluated", f"{BUILDER} could not be traced: {flow}")
        if wanted(flow):
            found.append(flow)
    if not found:
        raise NotFound("not-evaluated", f"{BUILDER}: no trace of a configuration that this rule needs")
    return found


def _drafting(flow: Flow) -> bool:
    return flow.drafts > 1


def _where(context: Context, steps: list[Step]) -> list[Evidence]:
    return [context.builder.at(line) for line in sorted({step.line for step in steps})]


def prefill_threshold(context: Context) -> Finding:
    builder = context.builder
    domain = decode_domain(context)
    longest = max(domain.q_lens, default=0)
    first = next((tokens for tokens in range(1, 1025) if uses_prefill(context, tokens)), None)
    node = builder.assignments("self._use_prefill")[0]
    differences = []
    if first != longest + 1:
        differences.append(f"prefill is built from {first} batched tokens, decode serves up to {longest}")
    return judge(
        f"prefill is built as soon as a batch can exceed decode ({longest + 1} tokens)",
        f"built from {first} tokens",
        differences,
        [builder.evidence(node), *domain.evidence],
    )


def draft_prefill_flag(context: Context) -> Finding:
    node = context.builder.assigned("use_mtp_prefill_attention")
    text = ast.unparse(node)
    differences = [f"use_mtp_prefill_attention is {text}"] if text == "False" else []
    return judge("the draft's prefill attention is on", text, differences, [context.builder.evidence(node)])


def direct_paged(context: Context) -> Finding:
    builder = context.builder
    node = builder.assigned("self._direct_paged_decode_kv")
    scope = next(f for f in builder.functions() if any(n is node for n in ast.walk(f)))
    differences = []
    for ranks in (1, 2, 4, 8):
        for requests in (1, 2):
            names = {
                "self.world_size": ranks,
                "self.mpk.max_num_batched_requests": requests,
                "self.mpk.total_num_requests": requests,
                "self.max_num_batched_requests": requests,
                "self.mpk.page_size": 128,
                "self.page_size": 128,
            }
            direct = bool(builder.resolve(node, names, scope))
            due = ranks in (2, 4) or (ranks == 1 and requests == 1)
            if direct != due:
                differences.append(f"TP{ranks} with {requests} requests: {'direct' if direct else 'gathered'}")
    due_words = "decode reads the paged cache directly at TP2, TP4, and TP1 with one request; not at TP8"
    return judge(due_words, "; ".join(differences) or due_words, differences, [builder.evidence(node)])


def gather_feeds_attention(context: Context) -> Finding:
    differences: list[str] = []
    steps: list[Step] = []
    for flow in traced(context):
        for step in flow.attention():
            caches = [t for n, t in _tensors(step) if re.match(r"(kv|ckv|kpe|k|v)(_|$)", n) and t in step.reads]
            if not caches:
                raise NotFound("ambiguous", f"{BUILDER}:{step.line}: {step.layer} has no argument named kv, ckv or kpe")
            steps.append(step)
            for cache in caches:
                writer = flow.writer(step, cache)
                if writer is None or "gather" not in writer.layer:
                    by = writer.layer if writer else "nothing"
                    differences.append(f"{step.layer} reads {flow.name(cache)}, written last by {by}")
                elif any(
                    "gather" not in s.layer and "c_latent" in _written(flow, s) for s in _between(flow, writer, step)
                ):
                    differences.append(f"{step.layer} reads {flow.name(cache)} as gathered for another layer")
    return judge(
        "each attention task reads the cache that this layer's gather wrote",
        "; ".join(sorted(set(differences))) or "it does",
        differences,
        _where(context, steps),
    )


def _written(flow: Flow, step: Step) -> str:
    return " ".join(flow.name(t) for t in step.writes)


def _tensors(step: Step) -> Iterator[tuple[str, int]]:
    for name, value in step.arguments.items():
        if isinstance(value, dict):
            yield name, int(value["tensor"])


def _between(flow: Flow, first: Step, last: Step) -> list[Step]:
    return flow.steps[first.index + 1 : last.index]


def chunked_prefill(context: Context) -> Finding:
    if not context.profile.has("unabsorbed prefill"):
        raise NotFound("anchor-absent", f"{BUILDER}: no call of an unabsorbed (tp8 chunked) prefill layer")
    differences, steps = [], []
    for flow in traced(context, lambda flow: flow.ranks == 8 and flow.tokens > 8 and flow.drafts > 1):
        for step in flow.attention():
            if "prefill" not in step.layer:
                continue
            steps.append(step)
            draft = flow.drafting(step)
            unabsorbed = "tp8" in step.layer
            if unabsorbed == draft:
                differences.append(f"{'the draft' if draft else 'the main model'} uses {step.layer}")
    return judge(
        "main: unabsorbed chunked prefill; draft: absorbed prefill",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        _where(context, steps),
    )


def decode_beside_prefill(context: Context) -> Finding:
    differences, steps = [], []
    for flow in traced(context):
        layers = {step.layer for step in flow.attention()}
        steps += flow.attention()
        unified = any("unified" in layer for layer in layers)
        if not unified and not any("decode" in layer for layer in layers):
            differences.append(f"TP{flow.ranks}, {flow.tokens} tokens: no decode attention is built")
        if uses_prefill(context, flow.tokens) and not unified and not any("prefill" in layer for layer in layers):
            differences.append(f"TP{flow.ranks}, {flow.tokens} tokens: no prefill attention is built")
    return judge(
        "decode attention is always built, prefill beside it where batches are long",
        "; ".join(sorted(set(differences))) or "both",
        differences,
        _where(context, steps),
    )


def reduce_where_split(context: Context) -> Finding:
    differences, steps = [], []
    for flow in traced(context):
        splits = -(-flow.sequence // 128)
        blocks = len([s for s in flow.attention() if "prefill" not in s.layer])
        merges = len(flow.reductions())
        steps += flow.reductions()
        if splits > 1 and merges != blocks:
            differences.append(f"{splits} splits: {merges} reduces for {blocks} decode attentions")
        if splits == 1 and merges:
            differences.append("one split: partial results are still merged")
    words = "; ".join(sorted(set(differences)))
    return judge("partial results are merged iff the KV is split", words or "so", differences, _where(context, steps))


def partial_sums_reduced(context: Context) -> Finding:
    """Taint: what a row-parallel weight gives is partial; it must be reduced once, before anything but a sum."""
    reference = context.reference.row_parallel
    taint = _Taint(reference.value)
    flows = traced(context, lambda flow: flow.ranks > 1)
    places = [place for flow in flows for place in _where(context, taint.follow(flow))]
    if not taint.differences:
        places = [p for flow in flows for p in _where(context, list(flow.with_layer("allreduce")))]
    return judge(
        "each row-parallel product passes one AllReduce before the residual and the next norm (TP > 1)",
        "; ".join(sorted(set(taint.differences))) or "each once",
        taint.differences,
        places,
        reference.evidence,
    )


class _Taint:
    """Follows partial sums through a flow. `row`: checkpoint names whose products are partial."""

    def __init__(self, row: list[str]) -> None:
        self.row = row
        self.differences: list[str] = []

    def follow(self, flow: Flow) -> list[Step]:
        """The steps where something is wrong."""
        self.partial: dict[int, Step] = {}  # tensor -> the row-parallel step that it comes from
        self.early: dict[int, Step] = {}  # tensor -> the step that added a residual to it before any reduce
        self.taken: set[int] = set()  # partial tensors that a reduce or a sum has read
        self.steps: list[Step] = []
        for step in flow.steps:
            self._written(flow, step, self._read(flow, step))
        self._lost(flow, list(self.partial))
        return self.steps

    def _read(self, flow: Flow, step: Step) -> Step | None:
        """Judges what a step reads; the source of the partial sum that its output then still is."""
        tensors = [t for t in step.reads if t in self.partial]
        source = self.partial[tensors[0]] if tensors else None
        self.taken.update(tensors)
        if "allreduce" in step.layer:
            early = self.early.get(flow.given(step, "input") or -1)
            if source is None:
                self._tell(f"{_reads(flow, step)} is reduced, and is no partial sum", step)
            if early is not None:
                self._tell(f"a residual is added to {_weight(flow, early)} before the reduce", early, step)
            return None
        if source is None:
            return None
        if step.layer not in _LINEAR_IN_SUMS:
            self._tell(f"the partial sum of {_weight(flow, source)} reaches {step.layer} unreduced", source, step)
            for tensor in tensors:  # told once
                del self.partial[tensor]
            return None
        whole = _full_residual(flow, step, self.partial)
        if whole is None:
            return source
        self._tell(f"{flow.name(whole)} is added to the partial sum of {_weight(flow, source)}", source, step)
        return None

    def _written(self, flow: Flow, step: Step, source: Step | None) -> None:
        product = any(key.startswith(f"{name}.") for name in self.row for key in flow.weight_keys(step))
        self._lost(flow, [t for t in step.writes if t in self.partial])
        for tensor in step.writes:
            self.partial.pop(tensor, None)
            self.early.pop(tensor, None)
            self.taken.discard(tensor)
            if product:
                self.partial[tensor] = step
                if flow.given(step, "residual") is not None:
                    self.early[tensor] = step
            elif source is not None:
                self.partial[tensor] = source

    def _lost(self, flow: Flow, tensors: list[int]) -> None:
        for tensor in tensors:
            if tensor not in self.taken:
                self._tell(
                    f"the partial sum of {_weight(flow, self.partial[tensor])} is never reduced", self.partial[tensor]
                )

    def _tell(self, words: str, *steps: Step) -> None:
        self.differences.append(words)
        self.steps += steps


def _full_residual(flow: Flow, step: Step, partial: dict[int, Step]) -> int | None:
    """A tensor that is whole on every rank, and is added to a partial sum: it would count once a rank."""
    names = ("input_a", "input_b") if step.layer == "elementwise_add_layer" else ("residual",)
    given = [flow.given(step, name) for name in names]
    return next((t for t in given if t is not None and t not in partial and t in step.reads), None)


def _weight(flow: Flow, step: Step) -> str:
    keys = [re.sub(r"\.weight.*", "", key) for key in flow.weight_keys(step)]
    return f"{'the draft layer' if flow.drafting(step) else 'layer'} {', '.join(sorted(set(keys)))}"


def _reads(flow: Flow, step: Step) -> str:
    return " and ".join(sorted({flow.name(t) for t in step.reads}))


def vocabulary_split(context: Context) -> Finding:
    differences, steps, split = [], [], False
    for flow in traced(context, lambda flow: flow.ranks > 1):
        heads = [s for s in flow.steps if "linear" in s.layer and flow.uses(s, "lm_head")]
        for step in heads:
            steps.append(step)
            rows = min(flow.tensors[t]["dims"][0] for t in step.reads if "lm_head" in " ".join(flow.keys(t)))
            split = split or rows < g.VOCAB
            if rows < g.VOCAB and flow.drafts:
                differences.append(f"TP{flow.ranks} with MTP: the head holds {rows} rows")
    if not steps:
        raise NotFound("anchor-absent", f"{BUILDER}: no linear layer reads lm_head")
    if not split:
        raise NotFound(
            "anchor-absent", f"{BUILDER}:{steps[0].line}: no vocabulary-parallel head; it is whole everywhere"
        )
    return judge(
        "the head is vocabulary-parallel iff TP > 1 and MTP is off",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        _where(context, steps),
    )


def _normed_by(flow: Flow, step: Step | None, weight: str) -> bool:
    return step is not None and any(key == weight for t in step.reads for key in flow.tensors[t]["keys"])


def draft_hidden(context: Context) -> Finding:
    reference = context.reference.hidden_after_norm
    differences, steps, later_ok = [], [], True
    for flow in traced(context, _drafting):
        norms = [s for s in flow.steps if flow.uses(s, "hnorm")]
        if not norms:
            raise NotFound("anchor-absent", f"{BUILDER}: no layer reads hnorm")
        for number, step in enumerate(norms):
            hidden = flow.given(step, "input")
            source = flow.writer(step, hidden) if hidden is not None else None
            if number == 0:
                steps.append(step)
                if reference.value and not _normed_by(flow, source, "model.norm.weight"):
                    differences.append("draft step 0 gets the target's hidden state before its final norm")
                    steps += [source] if source else []
            elif source is None or source.index <= norms[number - 1].index:
                steps.append(step)
                later_ok = False
                differences.append("a later draft step does not get the previous step's hidden state")
    note = "later steps get the previous step's output" if later_ok else ""
    recycles = context.reference.recycles_after_norm
    if recycles.value and later_ok:
        note += "; vLLM recycles it after shared_head's norm (not judged)"
    return judge(
        "step 0: the target's hidden state after its final norm; later steps: the previous step's",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        _where(context, steps),
        [*reference.evidence, *recycles.evidence],
        note,
    )


def draft_tokens_built_once(context: Context) -> Finding:
    differences, steps = [], []
    for flow in traced(context, _drafting):
        built = [s for s in flow.steps if s.layer == "mtp_build_embed_input_layer"]
        steps += built
        embeds = [s for s in flow.steps if flow.uses(s, "enorm")]
        if not embeds:
            raise NotFound("anchor-absent", f"{BUILDER}: no layer reads enorm")
        if len(built) != 1:
            differences.append(f"the draft's input tokens are built {len(built)} times for {flow.drafts} draft steps")
        elif built[0].index > embeds[0].index:
            differences.append("the draft's input tokens are built after the first draft step")
    return judge(
        "the draft's input tokens are built once, before the draft loop",
        "; ".join(sorted(set(differences))) or "once",
        differences,
        _where(context, steps),
    )


def query_form(context: Context) -> Finding:
    """Fused Q [H*576] goes to decode, split Q [H*512] and [H*64] to absorbed prefill, each from its own weight."""
    differences, steps = [], []
    due = {"q_nope": ("q_b_nope", g.KV_LORA_RANK), "q_pe": ("q_b_pe", g.QK_ROPE_HEAD_DIM)}
    due["q_input"] = ("q_b_proj", g.ABSORBED_HEAD_DIM)
    for flow in traced(context):
        heads = g.HEADS // flow.ranks
        for step in flow.attention():
            steps.append(step)
            for argument, tensor in _tensors(step):
                if argument not in due:
                    continue
                weight, width = due[argument]
                if "tp8" in step.layer and "prefill" in step.layer and argument == "q_nope":
                    width = g.QK_NOPE_HEAD_DIM
                if not _made_by(flow, step, tensor, weight):
                    differences.append(
                        f"{step.layer} takes {flow.name(tensor)} as {argument}, which {weight} did not make"
                    )
                elif flow.tensors[tensor]["dims"][-1] != heads * width:
                    differences.append(
                        f"{step.layer} takes {argument} of {flow.tensors[tensor]['dims'][-1]} columns, H*{width} due"
                    )
    return judge(
        "decode gets the fused query, prefill the split one",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        _where(context, steps),
    )


def _made_by(flow: Flow, step: Step, tensor: int, weight: str) -> bool:
    """Whether a tensor that a step reads is a product of `weight`, through steps without weights (a rotation)."""
    writer = flow.writer(step, tensor)
    if writer is None:
        return False
    if any(flow.tensors[t]["keys"] for t in writer.reads):
        return flow.uses(writer, weight)
    return any(_made_by(flow, writer, t, weight) for t in writer.reads)


def partials_fresh(context: Context) -> Finding:
    differences, steps = [], []
    for flow in traced(context, lambda flow: flow.sequence > 128):
        used: dict[int, int] = {}
        for step in flow.reductions():
            steps.append(step)
            for tensor in step.reads:
                written = step.writer.get(tensor, -1)
                if written < 0 or written <= used.get(tensor, -1):
                    differences.append(f"{step.layer} reads {flow.name(tensor)}, not written since it was last read")
                used[tensor] = step.index
    if not steps:
        raise NotFound("anchor-absent", f"{BUILDER}: no layer merges partial attention results")
    return judge(
        "partial results are written anew before each merge",
        "; ".join(sorted(set(differences))) or "so",
        differences,
        _where(context, steps),
    )


def rope_consumed(context: Context) -> Finding:
    reference = context.reference.rotates
    differences, places = [], []
    for flow in traced(context):
        read = {t for step in flow.steps for t in step.reads}
        tables = [
            t for t, v in flow.tensors.items() if re.search(r"rope|cos|sin", v["name"]) and v["origin"] == "attached"
        ]
        tables = [t for t in tables if "layer" not in flow.tensors[t]["name"] and not flow.tensors[t]["keys"]]
        idle = [t for t in tables if t not in read]
        rotating = [s for s in flow.steps if re.search(r"rotary|rope", " ".join([s.layer, *s.tasks]))]
        if idle:
            names = ", ".join(sorted(flow.name(t) for t in idle))
            differences.append(f"{names}: attached, and read by no task")
        elif not tables and not rotating:
            differences.append("no position table is attached, and no task rotates")
    builder = context.builder
    for node in builder.calls("attach_input"):
        if re.search(r"name='(rope|cos|sin)", ast.unparse(node)):
            places.append(builder.evidence(node))
    return judge(
        "the rope parts of q and k are rotated: the position tables reach a task",
        "; ".join(sorted(set(differences))) or "they are read",
        differences,
        places,
        reference.evidence,
    )


def eh_columns(context: Context) -> Finding:
    reference = context.reference.eh_order
    differences, steps = [], []
    for flow in traced(context, _drafting):
        for step in (s for s in flow.steps if "linear" in s.layer and flow.uses(s, "eh_proj")):
            steps.append(step)
            columns = [m for key in flow.weight_keys(step) if (m := re.search(r", (\d+):(\d+)\]$", key))]
            source = flow.writer(step, flow.given(step, "input", "input_fp8") or -1)
            side = "embed" if source and flow.uses(source, "enorm") else "hidden"
            start = reference.value.index(side) * g.HIDDEN
            if not columns:
                raise NotFound("ambiguous", f"{BUILDER}:{step.line}: which columns of eh_proj are read cannot be told")
            if int(columns[0][1]) != start:
                differences.append(
                    f"the {side} side meets columns {columns[0][1]}:{columns[0][2]} of eh_proj, {start} due"
                )
    if not steps:
        raise NotFound("anchor-absent", f"{BUILDER}: no linear layer reads eh_proj")
    order = ", then ".join(reference.value)
    return judge(
        f"eh_proj's columns: {order}",
        "; ".join(sorted(set(differences))) or order,
        differences,
        _where(context, steps),
        reference.evidence,
    )


RULES = [
    Rule(
        "B01",
        "prefill is built where batches can exceed decode",
        "wrong-output",
        "Between the two thresholds no kernel computes attention at all.",
        prefill_threshold,
    ),
    Rule(
        "B02",
        "the draft's prefill attention is on",
        "wrong-output",
        "Off, the draft's attention is skipped for prompts and its hidden states are garbage.",
        draft_prefill_flag,
        required=False,
    ),
    Rule(
        "B03",
        "decode reads the paged cache directly only where it may",
        "hang",
        "The TP8 variant hangs; TP1 relies on the physical page order of one request.",
        direct_paged,
        required=False,
    ),
    Rule(
        "B04",
        "the KV gather fills what attention reads",
        "wrong-output",
        "Another buffer means an empty, or another layer's, history.",
        gather_feeds_attention,
        "trace",
    ),
    Rule(
        "B05",
        "main model and draft use their own prefill kernels",
        "wrong-output",
        "Absorbed weights in an unabsorbed kernel multiply without complaint.",
        chunked_prefill,
        "trace",
        required=False,
    ),
    Rule(
        "B06",
        "decode is built beside prefill for every TP size",
        "wrong-output",
        "One graph serves both phases; a missing half leaves its outputs stale.",
        decode_beside_prefill,
        "trace",
    ),
    Rule(
        "B07",
        "partial attention results are merged iff KV is split",
        "performance",
        "One split needs no merge; many without one give a part of the attention.",
        reduce_where_split,
        "trace",
    ),
    Rule(
        "B08",
        "row-parallel products are all-reduced exactly once",
        "wrong-output",
        "Unreduced, each rank goes on with its own share of the sum; the residual added first counts once a rank.",
        partial_sums_reduced,
        "trace",
    ),
    Rule(
        "B09",
        "the LM head is vocabulary-parallel iff TP > 1 without MTP",
        "performance",
        "Drafting needs the whole vocabulary on every rank; without it, a part saves the time.",
        vocabulary_split,
        "trace",
        required=False,
    ),
    Rule(
        "B10",
        "draft steps start from the right hidden state",
        "wrong-output",
        "MTP was trained on the target's normed hidden state; another one lowers acceptance silently.",
        draft_hidden,
        "trace",
        features=("mtp",),
    ),
    Rule(
        "B11",
        "the draft's input tokens are built once, before the loop",
        "wrong-output",
        "Built within the loop they overwrite the drafted token.",
        draft_tokens_built_once,
        "trace",
        features=("mtp",),
    ),
    Rule(
        "B12",
        "fused and split queries reach their kernels",
        "wrong-output",
        "Both forms exist side by side and have compatible types.",
        query_form,
        "trace",
    ),
    Rule(
        "B13",
        "partial buffers are written before each merge",
        "wrong-output",
        "A draft step that merges the previous step's partials repeats its attention.",
        partials_fresh,
        "trace",
    ),
    Rule(
        "B14",
        "rotary positions reach a task",
        "wrong-output",
        "Without rotation attention cannot tell one order of tokens from another.",
        rope_consumed,
        "trace",
    ),
    Rule(
        "B15",
        "eh_proj's columns are embedding first",
        "wrong-output",
        "The two halves have one shape; swapped, both sides get the other's weights.",
        eh_columns,
        "trace",
        features=("mtp",),
    ),
]
