"""Known faults, planted in the real engine. A spec is a dict: `kind`, and where it has them `rank`, `layer`, `expert`.

`w2`: the shard starts one MXFP4 group late (`parts`: `packed`, `scales`, or both). `neighbour`: the next rank's W2.
`w1`: rows 32 late. `silent`: one rank's part of the routed experts is lost before the sum. `sink`: lost. `drop`: an
expert's W2 is never loaded. `nan`: every logit. `one-token` answers everything. `unsteady`: every third step differs.
`batch`: a row gets its neighbour's logits. `cache`: blocks of the prefix cache are known by their number alone.
"""

import importlib

import torch

_EXPERTS = "vllm.model_executor.layers.fused_moe.routed_experts"
_GROUP = 32


def install(spec):
    globals()[f"_{spec['kind'].replace('-', '_')}"](spec)
    return f"FAULT {spec}"


def _hits(spec, layer, name=None, expert=None):
    """Is this the layer, rank, part and expert that the fault is for?"""
    return (
        f"layers.{spec.get('layer', 0)}." in layer.layer_name
        and layer.moe_config.tp_rank == spec.get("rank", 0)
        and (spec.get("expert") is None or expert is None or expert == spec["expert"])
        and (name is None or ("scales" if "scale" in name else "packed") in spec.get("parts", ("packed", "scales")))
    )


def _changed_source(spec, shard, change):
    """The loader is handed another tensor: `change(tensor, dim, tp, is_scale)`."""
    cls = importlib.import_module(_EXPERTS).RoutedExperts
    inner = cls.weight_loader

    def weight_loader(self, param, loaded_weight, weight_name, shard_id, expert_id, return_success=False):
        if shard_id == shard and _hits(spec, self, weight_name, expert_id):
            dim = 1 if shard == "w2" else 0
            loaded_weight = change(loaded_weight, dim, self.moe_config.tp_size, "scale" in weight_name)
        return inner(self, param, loaded_weight, weight_name, shard_id, expert_id, return_success)

    weight_loader.supports_moe_loading = True  # type: ignore[attr-defined]
    cls.weight_loader = weight_loader


def _rolled(tensor, dim, by):
    if tensor.element_size() == 1:
        return torch.roll(tensor.view(torch.uint8), -by, dim).view(tensor.dtype)
    return torch.roll(tensor, -by, dim)


def _w2(spec):
    _changed_source(spec, "w2", lambda t, dim, tp, scale: _rolled(t, dim, 1 if scale else _GROUP // 2))


def _neighbour(spec):
    _changed_source(spec, "w2", lambda t, dim, tp, scale: _rolled(t, dim, t.shape[dim] // tp))


def _w1(spec):
    _changed_source(spec, "w1", lambda t, dim, tp, scale: t if scale else _rolled(t, dim, _GROUP))


def _drop(spec):
    _changed_source(spec, "w2", lambda t, dim, tp, scale: torch.zeros_like(t.view(torch.uint8)).view(t.dtype))


def _after_loading(change):
    """`change(model)` when its weights are prepared."""
    cls = importlib.import_module("vllm.model_executor.model_loader.base_loader").BaseModelLoader
    inner = cls.load_model

    def load_model(self, *arguments, **named):
        model = inner(self, *arguments, **named)
        change(model)
        return model

    cls.load_model = load_model


def _silent(spec):
    """This rank's experts answer with zeros: its part of the sum is lost."""

    def change(model):
        methods = [getattr(module, "quant_method", None) for module in model.modules()]
        for cls in {kernel for kernel in (getattr(m, "experts_cls", None) for m in methods) if kernel is not None}:
            cls.apply = _zeroed(cls.apply, spec.get("rank", 0))

    _after_loading(change)


def _zeroed(inner, rank):
    def apply(self, output, *arguments, **named):
        inner(self, output, *arguments, **named)
        if self.moe_config.tp_rank == rank:
            output.zero_()

    return apply


def _sink(spec):
    """No sink in one layer: as if it had not been loaded (-inf)."""

    def change(model):
        for module in model.modules():
            if hasattr(module, "attn_sink") and f"layers.{spec.get('layer', 0)}." in getattr(module, "prefix", ""):
                module.attn_sink.data.fill_(-torch.inf)

    _after_loading(change)


def _logits(change):
    """What the model answers with: `change(logits, number of the call)` (rows, vocabulary), on rank 0."""
    cls = importlib.import_module("vllm.model_executor.layers.logits_processor").LogitsProcessor
    inner, calls = cls.forward, []

    def forward(self, *arguments, **named):
        logits = inner(self, *arguments, **named)
        calls.append(1)
        return None if logits is None else change(logits, len(calls))

    cls.forward = forward


def _nan(spec):
    _logits(lambda logits, call: torch.full_like(logits, torch.nan))


def _one_token(spec):
    def change(logits, call):
        logits = logits.clone()
        logits[:, 7] = logits.amax(1) + 1
        return logits

    _logits(change)


def _unsteady(spec):
    _logits(lambda logits, call: logits * (1 + 2.0**-7) if call % 3 == 0 else logits)


def _batch(spec):
    _logits(lambda logits, call: logits.roll(1, 0) if 1 < len(logits) <= 8 else logits)


def _cache(spec):
    """The prefix cache's hash of a block forgets which tokens are in it."""
    module = importlib.import_module("vllm.v1.core.kv_cache_utils")
    inner = getattr(module, "hash_block_tokens")  # noqa: B009

    def hash_block_tokens(function, parent, tokens, extra_keys=None):
        return inner(function, parent, [0] * len(tokens), extra_keys)

    setattr(module, "hash_block_tokens", hash_block_tokens)  # noqa: B010
