"""Every key of every layer, on a model with the target's layers and expert numbers and very small tensors.

The other claims look at one layer of each kind and at two experts; what a loader does about a name may depend on its
numbers.
"""

from __future__ import annotations

from conformance import geometry
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.needs import PLAIN_MODELS
from conformance.provenance import model_maps, model_trace
from conformance.provenance.model_maps import Tensors
from conformance.result import Evidence, Finding
from references import checkpoint
from suites.loader import mutated

#: Numbers of one and of two digits, whatever the target has.
EXPERTS, LAYERS = 13, 12
_SIZES = {"hidden_size": 128, "moe_intermediate_size": 128, "vocab_size": 128, "q_lora_rank": 128, "o_lora_rank": 128}
_NAMED = ("num_hash_layers", "n_shared_experts", "num_nextn_predict_layers")
_MOST = 12


def slim(context: Context) -> geometry.Geometry:
    """The tiny model with EXPERTS experts and the target's layers; those of a short target are repeated."""
    config = context.geometry.config
    if context.geometry.model_type in PLAIN_MODELS:
        return geometry.parse(config | mutated.PLAIN, "the target's names, slim")
    if context.geometry.model_type != "deepseek_v4":
        raise NotSupported(f"{context.geometry.name}: no layout of its checkpoint is known")
    own = {key: config[key] for key in _NAMED if key in config}
    total, ratios = config["num_hidden_layers"], config["compress_ratios"]
    layers = max(total, LAYERS)
    own |= {
        "num_hidden_layers": layers,
        "compress_ratios": [ratios[index % total] for index in range(layers)] + ratios[total:],
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 1,
    }
    return geometry.parse(geometry.load("deepseek-v4-tiny").config | _SIZES | own, "the target's names, slim")


def evidence(context: Context) -> Evidence:
    model = slim(context)
    if model.model_type in PLAIN_MODELS:
        tensors = model_maps.plain(model.config, model.layers)
    else:
        listed = checkpoint.tensors(model.config, draft=False)
        stored = {name: (tensor.dtype, tensor.shape) for name, tensor in listed.items()}
        tensors = Tensors(stored, {name: tensor.kind for name, tensor in listed.items()}, model.config, model.layers)
    stored = tensors.stored
    opened = model_maps.opened(
        context.model_loader, context.target, 0, tensors, model=model, tp=1, experts=model.experts
    )
    try:
        held, homes, kind = model_trace.where(opened, stored), opened.info.homes, opened.info.model
    finally:
        opened.close()
    if unknown := [name for name in stored if name not in homes]:
        raise NotSupported(f"the adapter does not know in which parameter of {kind} {unknown[0]} belongs")
    findings = [
        Finding(
            name,
            f"in {homes[name]}",
            f"in {', '.join(sorted(held.get(name, ()))) or 'no parameter'}",
            "silently dropped" if name not in held else "mapped to another tensor's place",
        )
        for name in stored
        if held.get(name) != {homes[name]}
    ]
    return Evidence(
        ok=not findings,
        summary=f"{len(stored)} keys of {model.layers} layers and {model.experts} experts, each in its own parameter"
        if not findings
        else f"{findings[0].where}: {findings[0].got}, {findings[0].expected} due ({len(findings)} such)",
        expected=len(stored),
        measured=len(stored) - len(findings),
        findings=findings[:_MOST],
        notes=[f"tensors of hidden size {model.hidden_size}, TP1"],
        method="digit passes that number the tensors",
    )
