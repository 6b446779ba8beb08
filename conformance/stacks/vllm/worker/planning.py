"""What vLLM makes of one configuration: accepted, refused or silently ignored, and the axes that come of it."""

from . import configs, model_layers, virtual_tp
from .problems import Refused, stacks_words

#: Axes that a rank must get a whole share of -> their names in the model's configuration. (Any vLLM pads the
#: vocabulary, plan or no plan.)
SHARED_OUT = {
    "heads": "num_attention_heads",
    "groups": "o_groups",
    "routed": "moe_intermediate_size",
}


#: What a rank's share must be a multiple of: an MXFP4 scale group.
WHOLE = {"routed": 32}


def plan(folder, tp, capability, attention, moe, force, expert_parallel=False):
    """PlanOutcome's fields. The outcome is vLLM's own, also under `force`, which only adds axes."""
    model = configs.model_config(folder)
    before = sizes(model)
    message, config, notes = "", None, []
    if configs.asked_as(moe) != moe:
        notes.append(f"vLLM's configuration has no name for MoE backend {moe}: it was asked for 'auto'")
    try:
        config = configs.vllm_config(model, tp, capability, moe, attention, expert_parallel=expert_parallel)
        outcome, message = accepted_or_ignored(model, before, tp, expert_parallel)
        padding = virtual_tp.deed(model)
    except Refused as error:
        outcome, message = "refused", str(error)
        padding = virtual_tp.deed(model, error)
        notes.append(_WHOSE[padding])

    answer = {"outcome": outcome, "message": message, "padding": padding, "forced": False, "notes": notes}
    if outcome == "accepted":
        return answer | _axes(config, tp, capability, moe, notes)
    if force:
        config, how = _force(folder, tp, capability, attention, moe)
        if config is None:
            return answer | {"notes": [*notes, how]}
        return answer | _axes(config, tp, capability, moe, [*notes, how]) | {"forced": True}
    return answer


def sizes(model):
    """{axis: elements} of the text model, those that it has, before anything is padded."""
    text = model.hf_text_config
    found = {axis: getattr(text, name, None) for axis, name in SHARED_OUT.items()}
    return {axis: int(size) for axis, size in found.items() if size}


#: Whose refusal it is: a guard that says no, or a padding layer that does nothing and lets a later check fail.
_WHOSE = {
    "no-layer": "refused without a virtual-TP layer: this vLLM has none",
    "refused": "refused by the virtual-TP layer's own guard",
    "nothing": "the virtual-TP layer made no plan and raised nothing (a silent no-op); a later, general check refused",
    "planned": "the virtual-TP layer made its plan; a later, general check refused",
}


def accepted_or_ignored(model, before, tp, expert_parallel):
    """(outcome, message) of a configuration that raised nothing; `before` holds the sizes that the model came with."""
    cut = {n: size for n, size in before.items() if n != "routed" or not expert_parallel}  # else dealt out whole
    unshared = [n for n, size in cut.items() if size % (tp * WHOLE.get(n, 1))]
    if unshared and virtual_tp.plan_of(model) is None:
        return "ignored", f"no error and no plan, although TP{tp} gets no whole shares of {_list(before, unshared)}"
    return "accepted", ""


def _list(sizes_, names):
    return ", ".join(f"{name} {sizes_[name]}" for name in names)


def _force(folder, tp, capability, attention, moe):
    """(a configuration that carries the stack's plan, or None; how it was come by)."""
    if not virtual_tp.exists():
        return None, "no plan can be forced: this vLLM has no virtual-TP layer"
    model = configs.model_config(folder)
    try:
        config = configs.vllm_config(model, tp, capability, moe, attention, guarded=False)
        if virtual_tp.plan_of(model):
            return config, "plan made by force: the stack's `_validate_*` replaced by one that accepts"
    except Refused as error:
        last = str(error)
    else:
        last = "it made no plan"
    model = configs.model_config(folder)
    try:
        if virtual_tp.apply_directly(model, tp):
            config = configs.vllm_config(model, tp, capability, moe, attention, guarded=False)
            return config, "plan made by force: the stack's plan builder called directly"
    except Exception as error:  # the builder's own refusal is what we report
        last = stacks_words(error)
    return None, f"no plan can be forced: {last}"


def _axes(config, tp, capability, moe, notes):
    """Axes from the plan if there is one, else from the layers that vLLM builds; the layers are read in any case."""
    notes = list(notes)
    built = model_layers.read(config, tp, capability, moe)
    notes += built.notes
    stated = virtual_tp.plan_of(config.model_config)
    if stated is None:
        return {"axes": built.axes, "unpadded": built.unpadded, "origin": "layers", "notes": notes}
    axes = virtual_tp.axes_of(stated)
    unpadded = built.unpadded or configured(config.model_config)
    return {"axes": axes, "built": built.axes, "unpadded": unpadded, "origin": "plan", "notes": notes}


def configured(model):
    """The axes that no plan may change, as the configuration has them now."""
    text = model.hf_text_config
    names = {
        "kv_heads": "num_key_value_heads",
        "hidden_size": "hidden_size",
        "experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "index_heads": "index_n_heads",
    }
    found = {axis: getattr(text, name, None) for axis, name in names.items()}
    return {axis: int(size) for axis, size in found.items() if size}
