"""The stack's MXFP4 oracle: the backends it knows by name, the one it would choose, and how to choose for it."""

import contextlib
import inspect
import re
import sys
from types import SimpleNamespace

from .fake_platform import pretend
from .problems import Unsupported, stacks_words, unknown
from .start import module

_ORACLE = "vllm.model_executor.layers.fused_moe.oracle.mxfp4"
#: Questions for optional kernel packages, wherever the fused-MoE modules have bound them, and the one that hands out
#: b12x's own module, which is then asked whether it runs here.
_PRESENCE = re.compile(r"_?has_(flashinfer|b12x|deep_gemm|triton_kernels|humming|quark)")
_MODULE = re.compile(r"get_b12x_\w+")
_ASKING = ("vllm.model_executor.layers.fused_moe", "vllm.utils")
#: A refusal in these words is about this installation, not about the device that is asked for.
_PACKAGE = re.compile(r"\bpackage\b|not installed", re.IGNORECASE)
#: Answers about devices that a version may have kept from another pretended capability.
_DEVICE = re.compile(r"_?(is|has|supports?)_\w+")
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


#: Constants of vLLM's quant_utils -> the schemes that the harness computes in.
_SCHEMES = {"kMxfp8Dynamic": "mxfp8"}


def scheme(backend):
    """The activation scheme of one of the oracle's backends: `bf16`, `mxfp8`, or vLLM's own name for another."""
    key_of = getattr(_oracle(), "_backend_activation_key", None)
    if key_of is None:
        return "unknown"
    key = key_of(backend)
    if key is None:
        return "bf16"
    constants = vars(module("vllm.model_executor.layers.quantization.utils.quant_utils"))
    name = next((name for name, value in constants.items() if name.startswith("k") and value == key), str(key))
    return _SCHEMES.get(name, name)


def own_choice(moe_config, capability, with_packages=False):
    """What the unpatched oracle picks for this layer: {"backend", "experts", "activation", "scheme"} or
    {"refused": words}; {"lacking": words} where this installation, and not the device, is what it stumbles over.

    `with_packages` lets it believe that the kernel packages are installed, whatever this machine has.
    """
    oracle = _oracle()
    select = oracle.select_mxfp4_moe_backend  # the one that gpt-oss's method asks, whose experts have biases
    if not getattr(moe_config, "has_bias", False):
        select = getattr(oracle, "select_deepseek_v4_mxfp4_moe_backend", select)
    if with_packages:
        _import_kernels(moe_config.moe_backend)
    with pretend(capability), _packages_present() if with_packages else contextlib.nullcontext():
        try:
            backend, kernel = select(moe_config)
        except Exception as error:  # its refusal is the answer
            words = stacks_words(error)
            return {"refused": words} | ({"lacking": words} if _of_the_machine(error, words) else {})
    return {
        "backend": getattr(backend, "name", str(backend)),
        "experts": getattr(kernel, "__name__", str(kernel)),
        "activation": activation(backend),
        "scheme": scheme(backend),
    }


def _of_the_machine(error, words):
    return isinstance(error, (ImportError, OSError, AttributeError)) or bool(_PACKAGE.search(words))


def _import_kernels(name):
    """The modules of a backend's kernel classes, so that their questions for packages can be answered for them."""
    with contextlib.suppress(Unsupported):
        for backend in candidates(name):
            with contextlib.suppress(Exception):  # where it cannot be imported the oracle says so itself
                _oracle().backend_to_kernel_cls(backend)


@contextlib.contextmanager
def _packages_present():
    replaced = []

    def put(owner, attribute, value):
        replaced.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, value)

    runs = SimpleNamespace(is_supported=lambda *_, **__: True)
    for name, found in list(sys.modules.items()):
        if found is not None and name.startswith(_ASKING):
            for attribute, value in list(vars(found).items()):
                if not callable(value):
                    continue
                if _PRESENCE.match(attribute):
                    put(found, attribute, lambda *_, **__: True)
                elif _MODULE.match(attribute):
                    put(found, attribute, lambda *_, **__: runs)
    _forget_devices()
    try:
        yield
    finally:
        for owner, attribute, value in reversed(replaced):
            setattr(owner, attribute, value)
        _forget_devices()


def _forget_devices():
    for name, found in list(sys.modules.items()):
        if found is not None and name.startswith(_ASKING):
            for attribute, value in list(vars(found).items()):
                if _DEVICE.match(attribute) and callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()


def choosing_any():
    """`choosing` for a question that no backend decides."""
    for name in names():
        for backend in candidates(name):
            with contextlib.suppress(Exception):  # kernels that cannot be imported here
                _oracle().backend_to_kernel_cls(backend)
                return choosing(backend)
    raise Unsupported("none of the MXFP4 oracle's kernel classes can be imported here")


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
