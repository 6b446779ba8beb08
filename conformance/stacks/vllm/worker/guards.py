"""Guard questions: what vLLM says to a configuration, and what its padding layer did, without building a layer."""

from . import configs, draft, planning, virtual_tp
from .problems import Refused, Unsupported


def known():
    """{"attention": names, "moe": names} of the backends that can be asked for; `auto` is no backend."""
    return {
        "attention": configs.attention_backends(),
        "moe": [name for name in configs.moe_backends() if name != "auto"],
    }


def guards(folder, requests):
    """One answer a request, in order; a request is [tp, capability, attention, moe, expert_parallel, draft]."""
    return [_answer(folder, *request) for request in requests]


def _answer(folder, tp, capability, attention, moe, expert_parallel, with_draft):
    model = configs.model_config(folder)
    if with_draft:
        return draft.answer(model, tp, capability, attention, moe, expert_parallel)
    before = planning.sizes(model)
    try:
        configs.vllm_config(model, tp, capability, moe, attention, expert_parallel=expert_parallel)
    except Unsupported as lacking:
        return {"outcome": "refused", "message": str(lacking), "padding": "unknown-backend"}
    except Refused as error:
        return {"outcome": "refused", "message": str(error), "padding": virtual_tp.deed(model, error)}
    outcome, message = planning.accepted_or_ignored(model, before, tp, expert_parallel)
    return {"outcome": outcome, "message": message, "padding": virtual_tp.deed(model)}
