"""Import vLLM, once, as no device, with what keeps it from starting processes of its own."""

import importlib
import importlib.util
import inspect

from . import fake_platform
from .problems import Missing, stacks_words

#: What was changed in vLLM in order to drive it, in words, for StackInfo.notes.
PATCHES: list[str] = []

_outcome: list[str | None] = []


def start():
    """Once a process. Raises Missing("REASON") if vLLM cannot be imported, whatever it stumbled over."""
    if not _outcome:
        try:
            fake_platform.install()
            importlib.import_module("vllm.config")
        except Exception as error:
            _outcome.append(stacks_words(error))
            raise Missing(_outcome[0]) from error
        PATCHES.append(fake_platform.NOTE)
        inspect_models_here()
        _leave_all_reduce_alone()
        _outcome.append(None)
    if _outcome[0]:
        raise Missing(_outcome[0])


def inspect_models_here():
    """vLLM inspects a model class in a child process, to keep CUDA out of this one (10 to 25 s, and without the
    pretended platform). There is no CUDA here: inspect it in place."""
    registry = importlib.import_module("vllm.model_executor.models.registry")
    if hasattr(registry, "_run_in_subprocess"):
        setattr(registry, "_run_in_subprocess", lambda function: function())  # noqa: B010
        PATCHES.append("model classes are inspected in this process, not in a child")


def _leave_all_reduce_alone():
    """On 9.0 and 10.0 the configuration asks how large FlashInfer's fused all-reduce may be, from a module that wants
    compiled extensions. Compile ranges alone depend on it: say that there is none."""
    found = getattr(importlib.import_module("vllm.config.compilation"), "PassConfig", None)
    if hasattr(found, "default_fi_allreduce_fusion_max_size_mb"):
        setattr(found, "default_fi_allreduce_fusion_max_size_mb", staticmethod(dict))  # noqa: B010
        PATCHES.append("no size is looked up for FlashInfer's fused all-reduce (it decides compile ranges alone)")


def module(name):
    """A module of the running vLLM, or None if it has none of that name."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return importlib.import_module(name) if found else None


def accepted_arguments(callable_, arguments):
    """Those of `arguments` that this version's signature has."""
    known = inspect.signature(callable_).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in known}
