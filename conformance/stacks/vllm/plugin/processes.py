"""Without a GPU nothing forbids to fork processes from one where vLLM is imported: a third of the time and memory.

vLLM spawns them on CPUs, so that each imports everything anew, and inspects a model's class in one more. On GPUs it
forks as well, until CUDA is initialised.
"""

import importlib
import multiprocessing

#: What starts a server's engine, and what starts an engine's ranks.
_STARTERS = ("vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor")
_REGISTRY = "vllm.model_executor.models.registry"


def arrange():
    patches = []
    for name in _STARTERS:
        module = importlib.import_module(name)
        if hasattr(module, "get_mp_context"):
            setattr(module, "get_mp_context", lambda: multiprocessing.get_context("fork"))  # noqa: B010
            patches.append(f"{name}: processes are forked from the one that imported vLLM, not spawned")
    registry = importlib.import_module(_REGISTRY)
    if hasattr(registry, "_run_in_subprocess"):
        setattr(registry, "_run_in_subprocess", lambda function: function())  # noqa: B010
        patches.append("model classes are inspected in this process, not in a child")
    return patches
