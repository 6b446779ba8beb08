"""Runs the checkout's builder and Python wrappers with weights that have shapes only, and records every layer."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from conformance.drift import geometry as g
from conformance.drift.probes.stand_ins import KernelGraph, Recorder, Tensor, install
from conformance.drift.probes.weights_on_meta import Remembering, Weights

_BUILDER = "mirage.mpk.models.deepseek_v3.builder"
#: One dense and one MoE layer stand for all.
_LAYERS = [0, g.FIRST_MOE_LAYER]


def probe(request: dict[str, Any]) -> list[dict[str, Any]]:
    """One trace for each of request["configurations"] (ranks, rank, tokens, requests, sequence, drafts)."""
    root = Path(request["root"])
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=10, minor=0)  # type: ignore[assignment]
    return [_trace(root, configuration) for configuration in request["configurations"]]


def _trace(root: Path, configuration: dict[str, int]) -> dict[str, Any]:
    recorder = Recorder()
    for name in [name for name in sys.modules if name == "mirage" or name.startswith("mirage.")]:
        del sys.modules[name]
    install(root, recorder)
    try:
        with Remembering():
            _build(recorder, configuration)
    except Exception as error:
        return {**configuration, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    tensors = {str(t.id): t.described() for t in recorder.tensors}
    return {**configuration, "layers": recorder.layers, "tensors": tensors}


def _build(recorder: Recorder, configuration: dict[str, int]) -> None:
    builder_module = importlib.import_module(_BUILDER)
    persistent = importlib.import_module("mirage.mpk.persistent_kernel")
    models = importlib.import_module("mirage.mpk.models.graph_builder")
    ranks, drafts = configuration["ranks"], configuration["drafts"]
    cls = persistent.PersistentKernel
    _record_layers(cls, recorder, str(builder_module.__file__))
    vars(persistent)["KNGraph"] = lambda *_: KernelGraph(recorder)
    pages = 64
    parameters = {
        "mode": "offline",
        "world_size": ranks,
        "mpi_rank": configuration["rank"],
        "num_workers": 128,
        "num_local_schedulers": 16,
        "num_remote_schedulers": 0,
        "max_seq_length": configuration["sequence"],
        "max_num_batched_requests": configuration["requests"],
        "max_num_batched_tokens": configuration["tokens"],
        "max_num_pages": pages,
        "page_size": 128,
        "meta_tensors": _meta_tensors(configuration, pages),
        "profiler_tensor": None,
        "trace_name": "",
        "spec_decode_config": None,
        "use_cutlass_kernel": True,
    }
    mpk = cls(**parameters)
    if drafts:
        speculative = importlib.import_module("mirage.mpk.speculative")
        mpk.spec_decode_config = speculative.LookaheadConfig(spec_length=drafts)
    cache = [torch.empty(pages, 128, g.ABSORBED_HEAD_DIM, dtype=torch.bfloat16, device="meta") for _ in range(g.LAYERS)]
    model = models.MirageModelConfig(
        hidden_size=g.HIDDEN,
        intermediate_size=g.INTERMEDIATE,
        vocab_size=g.VOCAB,
        local_num_q_heads=g.HEADS // ranks,
        local_num_kv_heads=1,
        head_dim=g.ABSORBED_HEAD_DIM,
        num_layers=g.LAYERS,
        k_cache=cache,
        v_cache=cache,
        position_embeddings=None,
        state_dict=Weights(ranks),
        with_lm_head=True,
    )
    builder_module.DeepSeekV3Builder(mpk).build_from_config(model, layer_indices=list(_LAYERS))


def _meta_tensors(configuration: dict[str, int], pages: int) -> dict[str, torch.Tensor]:
    requests, tokens = configuration["requests"], configuration["tokens"]
    shapes = {
        "step": ((requests,), torch.int32),
        "tokens": ((requests, configuration["sequence"]), torch.int64),
        "input_tokens": ((tokens, 1), torch.int64),
        "output_tokens": ((tokens, 1), torch.int64),
        "num_new_tokens": ((requests,), torch.int32),
        "prompt_lengths": ((requests,), torch.int32),
        "qo_indptr_buffer": ((requests + 1,), torch.int32),
        "paged_kv_indptr_buffer": ((requests + 1,), torch.int32),
        "paged_kv_indices_buffer": ((pages,), torch.int32),
        "paged_kv_last_page_len_buffer": ((requests,), torch.int32),
    }
    return {name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in shapes.items()}


def _record_layers(cls: type, recorder: Recorder, builder_file: str) -> None:
    for name, method in list(vars(cls).items()):
        if name.endswith("_layer") and callable(method):
            setattr(cls, name, _recorded(name, method, recorder, builder_file))


def _recorded(name: str, method: Any, recorder: Recorder, builder_file: str) -> Any:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.open is not None:
            return method(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = {key: _plain(value) for key, value in bound.arguments.items() if key != "self"}
        entry = {"layer": name, "where": _caller(builder_file), "arguments": given, "tasks": []}
        recorder.open = entry
        try:
            return method(self, *args, **kwargs)
        finally:
            recorder.open = None
            recorder.layers.append(entry)

    return layer


def _caller(builder_file: str) -> list[tuple[str, int]]:
    """(function, line) of the builder's frames, innermost first."""
    frame = inspect.currentframe()
    found = []
    while frame is not None:
        if frame.f_code.co_filename == builder_file:
            found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


def _plain(value: Any) -> Any:
    """A tensor as {"tensor": id}; numbers, strings and tuples of them as they are; anything else by its type's name."""
    if isinstance(value, Tensor):
        return {"tensor": value.id}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__
