"""The stack's MXFP4 oracle: the backends it knows by name, the one it would choose, and how to choose for it."""

import contextlib
import inspect
import re
import sys

from .fake_platform import pretend
from .problems import Unsupported, stacks_words, unknown
from .start import module

_ORACLE = "vllm.model_executor.layers.fused_moe.oracle.mxfp4"
#: Questions for optional kernel packages, wherever the fused-MoE modules have bound them.
_PRESENCE = re.compile(r"_?has_(flashinfer|b12x|deep_gemm)")
_ASKING = ("vllm.model_executor.layers.fused_moe", "vllm.utils.flashinfer")
_METHODS = ("vllm.model_executor.layers.quantization.mxfp4", "vllm.models.deepseek_v4.quant_config")


def _oracle():
    found = module(_ORACLE)
    if found is None or not hasattr(found, "map_mxfp4_backend"):
        raise Unsupported("this vLLM has no MXFP4 MoE oracle (fused_moe/oracle/mxfp4.py)")
    return found


def names():
    """Names that `--backend` takes: the strings in `map_mxfp4_backend`'s own code that it maps to a backend."""
    function = _oracle().map_mxfp4_backend
    strings = set(_strings(getattr(function, "__wrapped__", function).__code__.co_consts))
    known = []
    for name in sorted(strings):
        with contextlib.suppress(ValueError, KeyError):
            if function(name):
                known.append(name)
    return known


def _strings(constants):
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _strings(constant)


def candidates(name):
    """The oracle's own backends for `name`, in its order. Raises Unsupported naming the nearest known one."""
    if name not in names():
        raise unknown("backend in its MXFP4 oracle named", name, names())
    return _oracle().map_mxfp4_backend(name)


def activation(backend):
    """The activation scheme of one of the oracle's backends, as the stack describes it."""
    key_of = getattr(_oracle(), "_backend_activation_key", None)
    if key_of is None:
        return "unknown"
    key = key_of(backend)
    return "bf16" if key is None else " ".join(str(key).split())


def own_choice(moe_config, capability, with_packages=False):
    """What the unpatched oracle picks for this layer: {"backend", "experts", "activation"} or {"refused": words}.

    `with_packages` lets it believe that FlashInfer, b12x and DeepGEMM are installed, whatever this machine has.
    """
    oracle = _oracle()
    select = getattr(oracle, "select_deepseek_v4_mxfp4_moe_backend", None) or oracle.select_mxfp4_moe_backend
    with pretend(capability), _packages_present() if with_packages else contextlib.nullcontext():
        try:
            backend, kernel = select(moe_config)
        except Exception as error:  # its refusal is the answer
            return {"refused": stacks_words(error)}
    return {
        "backend": getattr(backend, "name", str(backend)),
        "experts": getattr(kernel, "__name__", str(kernel)),
        "activation": activation(backend),
    }


@contextlib.contextmanager
def _packages_present():
    replaced = []
    for name, found in list(sys.modules.items()):
        if found is not None and name.startswith(_ASKING):
            for attribute, value in list(vars(found).items()):
                if _PRESENCE.match(attribute) and callable(value):
                    replaced.append((found, attribute, value))
                    setattr(found, attribute, lambda *_, **__: True)
    try:
        yield
    finally:
        for found, attribute, value in replaced:
            setattr(found, attribute, value)


@contextlib.contextmanager
def choosing(backend):
    """Inside, vLLM's quantization method is given `backend` whatever the machine is."""
    try:
        kernel = _oracle().backend_to_kernel_cls(backend)[-1]
    except ImportError as error:
        raise Unsupported(f"the kernel class of {backend.name} cannot be imported here: {error}") from error
    replaced = []
    for found in filter(None, map(module, _METHODS)):
        for name, function in list(vars(found).items()):
            if name.startswith("select_") and "mxfp4" in name and inspect.isfunction(function):
                replaced.append((found, name, function))
                setattr(found, name, lambda *_, **__: (backend, kernel))
    if not replaced:
        raise Unsupported("this vLLM's MXFP4 method selects its backend in a way that this adapter does not know")
    try:
        yield
    finally:
        for found, name, function in replaced:
            setattr(found, name, function)
