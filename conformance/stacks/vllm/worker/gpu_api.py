"""The calls of a worker that runs kernels: vLLM as it is, its own platform, on a GPU that it sees or on the CPU."""

import importlib

from . import sessions
from .problems import Missing, stacks_words


def _of(module, name):
    def call(**arguments):
        try:
            import vllm  # noqa: F401
        except Exception as error:
            raise Missing(stacks_words(error)) from error
        return getattr(importlib.import_module(f"{__package__}.{module}"), name)(**arguments)

    return call


CALLS = {
    "attach": sessions.attach,
    "detach": sessions.detach,
    "pin": sessions.pin,
    **{name: _of("moe", name) for name in ("open_moe", "fill_moe", "convert_moe", "run_moe", "close_moe")},
    **{name: _of("gpu_quantiser", name) for name in ("describe_quantiser", "quantise")},
    **{name: _of("hyper", name) for name in ("describe_hyper", "hyper")},
    **{name: _of("attention", name) for name in ("describe_attention", "pad_heads", "attention", "close_attention")},
    **{name: _of("ops", name) for name in ("describe_ops", "measure_op")},
    "graph": _of("graphs", "graph"),
}
