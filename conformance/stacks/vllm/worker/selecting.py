"""What the oracle chooses, capability by capability: left alone, and asked for each name that it knows."""

from . import configs, oracle, routed
from .problems import Refused

UNASKED = "auto"


def choices(folder, tp, share, capabilities):
    """Choice's fields, one a capability and name. Kernel packages are taken as there; the layer's configuration is
    that of rank 0 of `tp` with `share` elements, the whole model's is TP1's (no guard stands in the way).

    Raises Unsupported for a model whose experts are configured in another way.
    """
    from vllm.config import set_current_vllm_config

    family: dict[str, str] = {}
    for name in oracle.names():
        for backend in oracle.candidates(name):
            family.setdefault(backend.name, name)
    answers = []
    for capability in capabilities:
        config = configs.vllm_config(configs.model_config(folder), 1, capability, UNASKED, None, guarded=False)
        experts = int(getattr(config.model_config.hf_text_config, "n_routed_experts", 0) or 1)
        parallel = routed.parallel_config(tp, 0)
        with set_current_vllm_config(config):
            for name in (UNASKED, *oracle.names()):
                answers.append(_choice(config, parallel, name, experts, share * tp, capability, family))
    return answers


def _choice(config, parallel, name, experts, width, capability, family):
    answer = {"capability": list(capability), "asked": name}
    try:
        layer = routed.moe_config(config, parallel, name, experts, width=width)
    except Refused as error:
        return answer | {"refused": str(error)}
    own = oracle.own_choice(layer, capability, with_packages=True)
    if "backend" in own:
        told = {"backend": own["backend"], "scheme": own["scheme"], "family": family.get(own["backend"], "")}
        return answer | told
    return answer | {key: own[key] for key in ("refused", "lacking") if key in own}
