"""Import vLLM, once, as no device, with what keeps it from starting processes of its own."""

import importlib

from . import fake_platform
from .problems import Missing

#: What was changed in vLLM in order to drive it, in words, for StackInfo.notes.
PATCHES = []

_started = []


def start():
    """Idempotent. Raises Missing("REASON") if vLLM cannot be imported."""
    if _started:
        return
    try:
        fake_platform.install()
        PATCHES.append(fake_platform.NOTE)
        importlib.import_module("vllm.config")
        _inspect_models_here()
    except ImportError as error:
        raise Missing(f"{type(error).__name__}: {error}") from error
    _started.append(True)


def _inspect_models_here():
    """vLLM inspects a model class in a child process, to keep CUDA out of this one (10 to 25 s, and without the
    pretended platform). There is no CUDA here: inspect it in place."""
    registry = importlib.import_module("vllm.model_executor.models.registry")
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()
        PATCHES.append("model classes are inspected in this process, not in a child")


def module(name):
    """A module of the running vLLM, or None if it has none of that name."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return importlib.import_module(name) if found else None


def accepted_arguments(callable_, arguments):
    """Those of `arguments` that this version's signature has."""
    import inspect

    known = inspect.signature(callable_).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in known}
