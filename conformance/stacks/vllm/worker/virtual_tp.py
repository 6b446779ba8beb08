"""The stack's virtual-TP layer, if it has one: its plan, its guard, and the way round the guard."""

import contextlib
import inspect

from .start import module

_MODULE = "vllm.config.virtual_tp"

#: Axis names of a plan -> ours. Each plan axis holds original_size, padded_size and local_size.
AXES = {
    "attention_heads": "heads",
    "output_groups": "groups",
    "moe_intermediate_size": "routed",
    "shared_expert_intermediate_size": "shared",
    "vocab_size": "vocab",
}


def exists():
    return module(_MODULE) is not None


def plan_of(model):
    """The plan that this ModelConfig carries, as vLLM's own dictionary; None if it carries none."""
    found = module(_MODULE)
    name = getattr(found, "VIRTUAL_TP_PLAN_ATTR", None) if found else None
    return getattr(model.hf_text_config, name, None) if name else None


def deed(model, refusal=None):
    """What the padding layer itself did to this ModelConfig: `planned`, `refused` (its guard raised), `nothing`, or
    `no-layer` where this vLLM has none. `refusal` is what the whole configuration was refused with."""
    if not exists():
        return "no-layer"
    if refusal is not None and refusal.by_guard:
        return "refused"
    return "planned" if model is not None and plan_of(model) is not None else "nothing"


def axes_of(plan):
    """{our name: (original, padded, per rank)} as the plan states them."""
    return {
        AXES[name]: (axis["original_size"], axis["padded_size"], axis["local_size"])
        for name, axis in plan.items()
        if name in AXES
    }


@contextlib.contextmanager
def without_guard():
    """Inside, every `_validate_*` of the virtual-TP module accepts."""
    found = module(_MODULE)
    guards = {n: f for n, f in vars(found).items() if n.startswith("_validate") and callable(f)} if found else {}
    for name in guards:
        setattr(found, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, function in guards.items():
            setattr(found, name, function)


def apply_directly(model, tp):
    """Let vLLM's plan builder pad `model` with no guard and no question about the platform, as it does for drafts.

    Returns whether there was such a function.
    """
    found = module(_MODULE)
    if found is None:
        return False
    from vllm.config import ParallelConfig

    for name, function in vars(found).items():
        if name.startswith("apply_") and "model_config" in inspect.signature(function).parameters:
            function(
                model,
                ParallelConfig(tensor_parallel_size=tp, distributed_executor_backend="external_launcher"),
            )
            return True
    return False
