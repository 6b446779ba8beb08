"""A stack's parts with a fault planted: the one list of which seam lies at which part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.faults import ops
from conformance.faults.attention_seam import FaultyAttention, FaultyAttentionCalls
from conformance.faults.compiled import FaultyCompiler
from conformance.faults.graphs import FaultyGraphs
from conformance.faults.kernel import FaultyCalls, FaultyMoe
from conformance.faults.models import FaultyModelLoader
from conformance.faults.prepare import FaultyPreparation, FaultySelection
from conformance.stacks.parts import Parts

if TYPE_CHECKING:
    from conformance.faults.fault import Fault


def planted_parts(offers: Parts, fault: Fault, rank: int | None = None) -> dict[str, Callable[..., Any]]:
    """The stack's parts, those that the fault is about with it planted. `rank`: of the rank process that this is, if it
    is one: a fault of attention may be one rank's alone."""
    found = dict(offers)

    def change(name: str, planted: Callable[[Any], Any]) -> None:
        """Change what a part's opener gives."""
        if name in found:
            clean = found[name]
            found[name] = lambda: planted(clean())

    def replace(name: str, planted: Callable[[Any], Any]) -> None:
        """Change a part that is called as it is."""
        if name in found:
            found[name] = planted(found[name])

    if moe := fault.moe:
        change("moe", lambda kernel: FaultyMoe(kernel, moe))
        if moe_call := moe.call:
            replace("moe_calls", lambda calls: FaultyCalls(calls, moe_call))
        if compiled := moe.compiled:
            change("compiler", lambda compiler: FaultyCompiler(compiler, compiled))
    if model := fault.model:
        change("model_loader", lambda models: FaultyModelLoader(models, model))
    if prepare := fault.prepare:
        change("preparation", lambda right: FaultyPreparation(right, prepare))
    if selection := fault.selection:
        change("selection", lambda honest: FaultySelection(honest, selection))
    if graph := fault.graph:
        for name in ("graph", "attention_graph", "layer_graph"):
            change(name, lambda runner: FaultyGraphs(runner, graph))
    if op := fault.op:
        change("custom_ops", lambda clean: [ops.planted(one, op) for one in clean])
    if quant := fault.quant:
        for name in quant._fields:
            replace(name, partial(quant.planted, name))
    if quant_call := fault.quant_call:
        replace("quant_calls", quant_call.planted)
    if attention := fault.attention:
        if call := attention.call:
            replace("attention_calls", lambda calls: FaultyAttentionCalls(calls, call))
        if attention.rank in (None, rank):
            change("attention", lambda kernel: FaultyAttention(kernel, attention))
    return found
