"""One rank's real model, built by vLLM's own class: on the meta device to read sizes, or on the CPU to be loaded."""

import contextlib
import importlib
import sys
from typing import Any

from . import oracle, stubs
from .fake_platform import pretend


def build(config, tp, capability, moe, rank, layers, experts=None, device="meta", draft=False, vocabulary=None):
    """The model of `rank`, shortened: its first `layers` layers, `experts` and rows of `vocabulary` (None: all).

    `draft` builds the model class of `config.speculative_config`'s draft instead. The configuration is given back as
    it came. Raises what the model's constructor raises.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.models import ModelRegistry

    described = config.speculative_config.draft_model_config if draft else config.model_config
    kind, _ = ModelRegistry.resolve_model_cls(described.architectures, model_config=described)
    if capability is None:
        kind = _without_cuda(kind)
    choice = oracle.choosing(oracle.candidates(moe)[0]) if moe in oracle.names() else contextlib.nullcontext()
    context = config.compilation_config.static_forward_context
    registered, cache_dtype, dtype = dict(context), config.cache_config.cache_dtype, torch.get_default_dtype()
    with shortened(config, layers, experts, draft, vocabulary):
        try:
            config.cache_config.cache_dtype = "fp8"
            torch.set_default_dtype(described.dtype)
            with (
                set_current_vllm_config(config),
                pretend(capability, cuda=False),
                stubs.standing_in(tp, rank),
                choice,
                torch.device(device),
            ):
                return kind(vllm_config=config)
        finally:
            torch.set_default_dtype(dtype)
            config.cache_config.cache_dtype = cache_dtype
            context.clear()
            context.update(registered)


@contextlib.contextmanager
def shortened(config, layers, experts, draft, vocabulary=None):
    """Inside, every text configuration has that many layers, experts and rows of vocabulary. The draft's own number of
    layers stays, and so does the target's, by which it finds its place."""
    wanted = {} if draft else {"num_hidden_layers": layers}
    if experts is not None:
        wanted |= {"n_routed_experts": experts, "num_local_experts": experts, "num_experts_per_tok": 1}
    if vocabulary is not None:
        wanted |= {"vocab_size": vocabulary}
    models = [config.model_config] + ([config.speculative_config.draft_model_config] if draft else [])
    texts = {id(text): text for model in models for text in (model.hf_config, model.hf_text_config)}.values()
    before = [(text, {n: getattr(text, n) for n in wanted if hasattr(text, n)}) for text in texts]
    try:
        for text, values in before:
            for name in values:
                setattr(text, name, wanted[name])
        yield
    finally:
        for text, values in before:
            for name, value in values.items():
                setattr(text, name, value)


def _without_cuda(kind):
    """The same model's class for CPUs, where this version has one: the default one asks for a CUDA capability."""
    parts = kind.__module__.rsplit(".", 2)
    try:
        return getattr(importlib.import_module(f"{parts[0]}.cpu.{parts[2]}"), kind.__name__)
    except (ImportError, AttributeError):
        return kind


@contextlib.contextmanager
def marking_uninitialised():
    """Inside, memory that nobody initialises is filled with NaN or the largest integer."""
    import torch

    deterministic: Any = sys.modules["torch.utils.deterministic"]
    filled = deterministic.fill_uninitialized_memory
    strict, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn)
        deterministic.fill_uninitialized_memory = filled
