"""What the MoE kernel's side decides before anything is loaded: the oracle's pick, its scheme, its rounding."""

from . import configs, oracle, routed
from .problems import Refused, Unsupported


def kernel(folder, tp, capability, moe, widths):
    """KernelChoice's fields. `widths`: logical intermediate elements of one rank. Kernel packages are taken as there.

    The configuration is TP1's: the oracle and the layer's rounding do not look at the whole model's sharding, and so
    no guard stands in the way (45c pads any model whose heads are no multiple of 8, at TP1 too: its guard is out).
    """
    from vllm.config import set_current_vllm_config

    wanted = oracle.candidates(moe)
    config = configs.vllm_config(configs.model_config(folder), 1, capability, "auto", None, guarded=False)
    parallel = routed.parallel_config(tp, 0)
    text = config.model_config.hf_text_config
    experts = int(getattr(text, "n_routed_experts", 0) or getattr(text, "num_local_experts", 0) or 1)
    answer = {"asked": moe, "candidates": [b.name for b in wanted], "roundings": {}, "notes": []}
    with set_current_vllm_config(config):
        if capability is not None:
            layer = routed.moe_config(config, parallel, moe, experts, width=widths[0] * tp)
            own = oracle.own_choice(layer, capability, with_packages=True)
            if "lacking" in own:
                raise Unsupported(f"the oracle cannot be asked for {moe} here: {own['lacking']}")
            answer |= {k: own[k] for k in ("backend", "scheme", "refused") if k in own}
        picked = next((b for b in wanted if b.name == answer.get("backend")), wanted[0])
        for width in widths:
            try:
                layer = routed.build(config, tp, 0, moe, picked, 1, capability, width=width * tp)
            except Refused as error:
                answer["notes"].append(f"no layer of {width} elements a rank can be built: {error}")
                continue
            answer["roundings"][width] = int(layer.intermediate_size_per_partition)
            answer["hidden"] = int(layer.hidden_size)
    return answer


def picked(config, tp, rank, name, capability, experts, share):
    """The name of the oracle's own choice when it is asked for `name`, kernel packages taken as there. Call it inside
    `set_current_vllm_config(config)`. Raises Refused with the oracle's words, Unsupported where it cannot be asked."""
    layer = routed.moe_config(config, routed.parallel_config(tp, rank), name, experts, width=share * tp)
    own = oracle.own_choice(layer, capability, with_packages=True)
    if "lacking" in own:
        raise Unsupported(f"the oracle cannot be asked for {name} here: {own['lacking']}")
    if "refused" in own:
        raise Refused(f"asked for {name}, the oracle says {own['refused']}")
    return own["backend"]
