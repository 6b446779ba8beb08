"""The draft (MTP) model: planned by vLLM's SpeculativeConfig before the target's VllmConfig, as `vllm serve` does."""

from . import configs, planning, virtual_tp
from .fake_platform import pretend
from .problems import Refused, Unsupported, stacks_words


def answer(model, tp, capability, attention, moe, expert_parallel):
    """PlanOutcome's fields. `outcome` is the whole configuration's, target and draft; `padding` and `axes` are what
    became of the draft's own configuration, whatever the target's guard said afterwards."""
    before = planning.sizes(model)
    try:
        configs.check_names(moe, attention)
    except Unsupported as lacking:
        return {"outcome": "refused", "message": str(lacking), "padding": "unknown-backend"}
    try:
        speculative = configured(model, tp, capability, expert_parallel)
    except Refused as error:
        return {"outcome": "refused", "message": str(error), "padding": virtual_tp.deed(None, error)}
    drafted = speculative.draft_model_config
    seen = {"padding": virtual_tp.deed(drafted), "axes": axes(drafted, before, tp), "origin": "draft"}
    try:
        configs.vllm_config(model, tp, capability, moe, attention, expert_parallel=expert_parallel, draft=speculative)
    except Refused as error:
        later = {"padding": virtual_tp.deed(drafted), "axes": axes(drafted, before, tp)}
        return seen | later | {"outcome": "refused", "message": str(error)}
    outcome, message = planning.accepted_or_ignored(drafted, before, tp, expert_parallel)
    seen |= {"padding": virtual_tp.deed(drafted), "axes": axes(drafted, before, tp)}
    return seen | {"outcome": outcome, "message": message}


def configured(model, tp, capability, expert_parallel=False):
    """The SpeculativeConfig of one MTP token on that target. Raises Refused, Unsupported (no MTP for this model)."""
    from vllm.config import SpeculativeConfig

    with pretend(capability), configs.refusals():
        found = SpeculativeConfig(
            method="mtp",
            num_speculative_tokens=1,
            target_model_config=model,
            target_parallel_config=configs.parallel_config(tp, expert_parallel),
        )
    if found.draft_model_config is None or found.draft_model_config is model:
        raise Unsupported("this vLLM gives the model no draft configuration of its own for method mtp")
    return found


def axes(drafted, before, tp):
    """{axis: (original, padded, per rank)}: the draft's own plan, or its configuration where it carries none."""
    stated = virtual_tp.plan_of(drafted)
    if stated is not None:
        return virtual_tp.axes_of(stated)
    now = planning.sizes(drafted)
    return {name: (size, now[name], now[name] // tp) for name, size in before.items() if now.get(name, 1) % tp == 0}


#: module -> where it is in a layer; the draft's layer has two more. Source: models/deepseek_v4/{nvidia,cpu}/model.py.
_LINEAR = {
    "attention": "attn.wq_b",
    "output projection": "attn.wo_b",
    "shared experts": "ffn.shared_experts.down_proj",
}
_ROUTED = "ffn.experts"
_OWN = {"embedding projection": "e_proj", "hidden projection": "h_proj"}


def schemes(folder, capability, of_draft):
    """{module: quantization method and block} that vLLM resolves for the layers of target or draft, by their prefixes.

    TP1: a scheme is no matter of sharding, and so no guard stands in the way.
    """
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.config.load import LoadConfig

    model = configs.model_config(folder)
    layer = 0
    if of_draft:
        layer = int(model.hf_text_config.num_hidden_layers)
        drafted = configured(model, 1, capability).draft_model_config
    config = configs.vllm_config(model, 1, capability, "auto", None, guarded=False)
    chosen = drafted if of_draft else model
    with pretend(capability), configs.refusals():
        quant = VllmConfig.get_quantization_config(chosen, LoadConfig())
    if quant is None:
        raise Unsupported("this vLLM resolves no quantization for the model: it would load unquantized layers")
    modules = _LINEAR | (_OWN if of_draft else {})
    found = {}
    with set_current_vllm_config(config), pretend(capability, cuda=False):
        for name, path in modules.items():
            found[name] = _scheme(quant, _bare_linear(), f"model.layers.{layer}.{path}")
        found["routed experts"] = _scheme(quant, _bare_experts(config), f"model.layers.{layer}.{_ROUTED}")
    return found


def _scheme(quant, layer, prefix):
    """`Fp8LinearMethod [128, 128]`. An unquantized layer is a scheme too: the caller judges it."""
    from . import oracle

    try:
        with oracle.choosing_any():
            method = quant.get_quant_method(layer, prefix)
    except Exception as error:  # it resolves none: that is the answer
        return f"none: {stacks_words(error)}"
    if method is None:
        return "none"
    block = getattr(quant, "weight_block_size", None) if "Linear" in type(method).__name__ else None
    return f"{type(method).__name__}{f' {list(block)}' if block else ''}"


def _bare_linear():
    from vllm.model_executor.layers.linear import LinearBase

    return object.__new__(LinearBase)


def _bare_experts(config):
    from vllm.model_executor.layers.fused_moe import RoutedExperts

    from . import routed

    layer = object.__new__(RoutedExperts)
    object.__setattr__(layer, "moe_config", routed.moe_config(config, routed.parallel_config(1, 0), "auto", 1))
    return layer
