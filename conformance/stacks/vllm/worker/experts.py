"""Open one rank's routed-expert layer: find a configuration that can hold it, build it, say how it came about."""

from . import configs, oracle, routed, virtual_tp
from .problems import Refused
from .sessions import Session, sessions

WAY_ROUND = "FusedMoEConfig's assertion that tp divides the intermediate size was gone round; `//` is its own"


def open_experts(folder, tp, rank, backend, experts, capability, attention, force, attributes):
    """See ExpertsRequest. Returns ExpertsInfo's fields and the session's number.

    Raises Refused (vLLM refuses the configuration or the layer), Unsupported (no such backend).
    """
    wanted = oracle.candidates(backend)
    if configs.model_config(folder).hf_text_config.model_type == routed.GPT_OSS:
        from . import gpt_oss

        return gpt_oss.open_experts(folder, tp, rank, backend, experts, capability, attention, force, attributes)
    named = backend if backend in configs.moe_backends() else "auto"
    config, notes, forced = configuration(folder, tp, capability, named, attention, force)
    if named != backend:
        notes.append(f"--moe-backend takes no {backend!r} here, only the oracle does: configured as {named!r}")
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(config):
        own = _own_choices(config, tp, rank, backend, capability, forced)
        picked = own["oracle_would_choose"].get("backend")
        chosen = next((b for b in wanted if b.name == picked), wanted[0])
        layer = routed.build(config, tp, rank, backend, chosen, experts, capability, undivided=forced)
    if forced:
        notes.append(WAY_ROUND)
    notes.append(f"the oracle was made to return {chosen.name}; its own choice is in details")
    session = Session(layer, config, attributes)
    session.twin = lambda: routed.build(config, tp, rank, backend, chosen, 1, capability, undivided=forced)
    return {
        "session": sessions.add(session),
        "parameters": session.shapes(),
        "backend": chosen.name,
        "kernel_width": int(layer.intermediate_size_per_partition),
        "logical_width": _logical_width(layer),
        "notes": notes,
        "details": _details(layer, config, session) | own,
    }


def configuration(folder, tp, capability, backend, attention, force):
    """(VllmConfig, notes, whether the layer's own divisibility check has to be gone round too)."""
    model = configs.model_config(folder)
    try:
        return configs.vllm_config(model, tp, capability, backend, attention), [], False
    except Refused as error:
        refusal = error
    if virtual_tp.exists():
        found = _forced_plan(folder, tp, capability, backend, attention, refusal, force)
        if found is not None:
            return found
    if not force:
        raise refusal
    for smaller in range(tp - 1, 0, -1):
        try:
            config = configs.vllm_config(configs.model_config(folder), smaller, capability, backend, attention)
        except Refused:
            continue
        note = f"the configuration was refused at TP{tp} ({refusal}) and built at TP{smaller}; the layer is TP{tp}'s"
        return config, [note], True
    raise refusal


def _forced_plan(folder, tp, capability, backend, attention, refusal, force):
    """With the guard out, the stack's own plan; None if it makes none even so (then `force` decides)."""
    model = configs.model_config(folder)
    try:
        config = configs.vllm_config(model, tp, capability, backend, attention, guarded=False)
        note = f"plan made by force: the stack's guard said {refusal}"
        return config, [note], False
    except Refused:
        if not force:
            return None
    model = configs.model_config(folder)
    if not virtual_tp.apply_directly(model, tp):
        return None
    config = configs.vllm_config(model, tp, capability, backend, attention, guarded=False)
    return config, [f"plan made by force, by calling the plan builder directly: the stack said {refusal}"], False


def _own_choices(config, tp, rank, backend, capability, forced):
    """The oracle's own answer for this backend's name: as this machine is, and with the kernel packages installed."""
    moe = routed.moe_config(config, routed.parallel_config(tp, rank), backend, 1, undivided=forced)
    return {
        "oracle_chooses": oracle.own_choice(moe, capability),
        "oracle_would_choose": oracle.own_choice(moe, capability, with_packages=True),
    }


def _logical_width(layer):
    """The rank's width before the kernel's rounding, as the stack's own layer configuration has it."""
    width = getattr(layer.moe_config, "intermediate_size_per_partition_unpadded", None)
    return None if width is None else int(width)


def _details(layer, config, session):
    """What explains a wrong offset: widths, the plan in force, and what w2's parameters declare about themselves."""
    plan = virtual_tp.plan_of(config.model_config)
    routed_axis = virtual_tp.axes_of(plan).get("routed") if plan else None
    return {
        "virtual_tp_plan": plan is not None,
        "plan_routed_per_rank": routed_axis[2] if routed_axis else None,
        "intermediate_size_per_partition_unpadded": _logical_width(layer),
        "intermediate_size_per_partition": int(layer.intermediate_size_per_partition),
        "hidden_size": int(layer.hidden_size),
        "configured_intermediate_size": int(config.model_config.hf_text_config.moe_intermediate_size),
        "tp_of_configuration": config.parallel_config.tensor_parallel_size,
        "quant_method": type(layer.quant_method).__name__,
        "loader": f"{type(layer).__module__}.{type(layer).__qualname__}.weight_loader",
        "attributes": {name: session.declared(name) for name in ("w2_weight", "w2_weight_scale")},
    }
