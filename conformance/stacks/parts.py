"""What a stack may offer beside planner and loader: each part goes by the name of the method that opens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conformance.errors import NotSupported

_GRAPHS = "captures no graphs of that for"
#: Method -> what is said of a stack that lacks it: `the stack offers no quantiser to this harness (no `quantizer()`)`.
PARTS = {
    "moe": "offers no MoE kernel to",
    "moe_calls": "tells no calls of MoE kernels to",
    "model_loader": "offers no loader of whole models to",
    "preparation": "offers no preparation of weights to",
    "selection": "offers no selection of kernels to",
    "graph": _GRAPHS,
    "attention_graph": _GRAPHS,
    "layer_graph": _GRAPHS,
    "custom_ops": "offers no custom operators to",
    "compiler": "compiles nothing for",
    "quantizer": "offers no quantiser to",
    "gemm": "offers no grouped GEMM to",
    "swiglu": "offers no grouped GEMM that ends in SwiGLU to",
    "linear": "offers no quantised linear layer to",
    "moe_runner": "offers no MoE runner on quantised weights to",
    "quant_calls": "tells no calls of quantisers and their GEMMs to",
    "attention": "offers no attention kernels to",
    "hyper": "offers no hyper-connections to",
    "attention_calls": "tells no calls of attention kernels to",
}
#: Where a missing part may be had, for those that need another stack.
_MORE = {
    "moe": ": this needs a GPU, and a stack that runs kernels on it, as in --stack loader=vllm,moe=flashinfer",
}

Parts = Mapping[str, Callable[..., Any]]


def of(stack: object) -> dict[str, Callable[..., Any]]:
    """The parts that a stack has."""
    return {name: getattr(stack, name) for name in PARTS if hasattr(stack, name)}


def opener(parts: Parts, name: str) -> Callable[..., Any]:
    """Raises NotSupported where the stack lacks the part."""
    if name not in parts:
        raise NotSupported(f"the stack {PARTS[name]} this harness (no `{name}()`){_MORE.get(name, '')}")
    return parts[name]
