"""Which kernels serve which Q_LEN: shared by the threshold rule (B01) and the coverage rule (K06)."""

from __future__ import annotations

import ast
import re

from conformance.drift.context import BUILDER, Context
from conformance.drift.finding import NotFound
from conformance.drift.locate.gates import ALL, Domain, domain
from conformance.drift.locate.wrappers import layers_called

SIZES = (1, 2, 4, 8)


def uses_prefill(context: Context, tokens: int) -> bool:
    """Whether the builder builds prefill attention for this max-num-batched-tokens."""
    if tokens in context.prefill_cache:
        return context.prefill_cache[tokens]
    builder = context.builder
    assigned = builder.assignments("self._use_prefill")
    if not assigned:
        raise NotFound("anchor-absent", f"{BUILDER}: no assignment to self._use_prefill")
    values = set()
    for node in assigned:
        scope = next((f for f in builder.functions() if any(n is node for n in ast.walk(f))), None)
        names = {"self.max_num_batched_tokens": tokens, "self.mpk.max_num_batched_tokens": tokens}
        assert node.value is not None
        values.add(bool(builder.resolve(node.value, names, scope)))
    if len(values) > 1:
        raise NotFound("ambiguous", f"{BUILDER}: self._use_prefill is assigned two ways")
    context.prefill_cache[tokens] = values.pop()
    return context.prefill_cache[tokens]


def attention_layers(context: Context, kind: str) -> list[str]:
    """Attention layers that the builder calls: `decode`, `prefill`, `unified` or `reduce`."""
    patterns = {
        "decode": r"mla_(mtp_)?decode(_tp\d)?_layer$",
        "prefill": r"mla_prefill\w*_layer$",
        "unified": r"mla_unified_layer$",
        "reduce": r"mla_\w*reduce_layer$",
    }
    return [name for name in layers_called(context.builder) if re.match(patterns[kind], name)]


def tp_of(layer: str) -> tuple[int, ...]:
    """The TP sizes that a layer is for: by its name; plain decode is for 1, plain prefill and unified for all."""
    if size := re.search(r"_tp(\d)", layer):
        return (int(size[1]),)
    return SIZES if re.search(r"prefill|unified", layer) else (1,)


def layer_domain(context: Context, layer: str, tp: int) -> Domain:
    """The Q_LEN that a wrapper's kernel serves."""
    arms = context.arms_of(layer)
    if len(arms) != 1:
        raise NotFound("ambiguous" if arms else "anchor-absent", f"{layer}: {len(arms)} dispatch arms, 1 was expected")
    kernels = [name.split("::")[-1] for name in context.codegen(arms[0]).kernels()]
    if len(set(kernels)) != 1:
        raise NotFound("ambiguous", f"{arms[0].name}: generates calls of {sorted(set(kernels)) or 'no kernel'}")
    return domain(context.kernel(kernels[0]), kernels[0], tp, context.kernel)


def decode_domain(context: Context) -> Domain:
    """What all decode kernels serve, for every TP size that has one."""
    layers = attention_layers(context, "decode")
    if not layers:
        raise NotFound("anchor-absent", f"{BUILDER}: no decode attention layer is called")
    served, evidence = ALL, []
    for layer in layers:
        found = layer_domain(context, layer, tp_of(layer)[0])
        served &= found.q_lens
        evidence += found.evidence
    return Domain(served, evidence)
