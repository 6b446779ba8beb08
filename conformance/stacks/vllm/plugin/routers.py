"""Two router kernels are compiled for some expert counts alone; for others, the same formula in PyTorch.

A token's experts and weights are the same on every rank: nothing that tensor parallelism could get wrong.
"""

import importlib

import torch

_ROUTER = "vllm.model_executor.layers.fused_moe.router.cpu_router"


def arrange():
    router = importlib.import_module(_ROUTER)
    for name, other in (("hash_topk_cpu", by_table), ("biased_topk_cpu", by_score)):
        compiled = getattr(router, name)
        if not getattr(compiled, "_conformance", False):
            setattr(router, name, _or_else(compiled, other))
    return ["hash_topk_cpu and biased_topk_cpu: where they refuse an expert count, the same formula in PyTorch"]


def _or_else(compiled, other):
    def call(*arguments):
        try:
            return compiled(*arguments)
        except RuntimeError as error:
            if "unsupported" not in str(error).lower():
                raise
            return other(*arguments)

    call._conformance = True  # type: ignore[attr-defined]
    return call


def by_table(gating, chosen, top_k, scoring, shared, experts, factor):
    score = torch.nn.functional.softplus(gating.float()).sqrt()
    weight = torch.gather(score, 1, chosen.long())
    return factor * weight / weight.sum(1, keepdim=True), chosen.to(torch.int32)


def by_score(hidden, gating, bias, top_k, renormalize, scoring, shared, factor, apply_factor):
    score = torch.nn.functional.softplus(gating.float()).sqrt()
    chosen = (score + bias.float()).topk(top_k, dim=1).indices
    weight = torch.gather(score, 1, chosen)
    weight = weight / weight.sum(1, keepdim=True)
    return (weight * factor if apply_factor else weight), chosen.to(torch.int32)
