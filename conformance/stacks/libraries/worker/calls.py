"""The calls that the harness makes: open one library, call its functions through its module `of_LIBRARY`.

Such a module has `load()`, which imports the library, `VERSION()`, `CAPABILITIES()` and a function for each method that
it offers, with the protocol's arguments.
"""

import contextlib
import importlib
import sys

from . import packing

_opened: list = []


class Missing(Exception):
    kind = "StackMissing"


class Refused(Exception):
    """The library raised; the message is its own."""

    kind = "StackRefused"


class Unsupported(Exception):
    kind = "NotSupported"


def open_library(library):
    import torch

    module = importlib.import_module(f".of_{library}", __package__)
    try:
        module.load()
    except Exception as error:
        raise Missing(f"{type(error).__name__}: {error}") from error
    _opened[:] = [module]
    capabilities = module.CAPABILITIES()
    capabilities["offers"] = list(capabilities["offers"])
    return {
        "version": module.VERSION(),
        "python": sys.executable,
        "identity": {"torch": str(torch.__version__)},
        "capabilities": capabilities,
    }


def call_library(method, arguments):
    function = getattr(_opened[0], method, None)
    if function is None:
        raise Unsupported(f"no {method} of this library is known")
    given = packing.unpacked(arguments)
    kept = [one.clone() if hasattr(one, "clone") else None for one in given]
    try:
        with _filled():
            answer = function(*given)
    except NotImplementedError as error:
        raise Unsupported(str(error)) from error
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    for one, copy in zip(given, kept, strict=True):
        if copy is not None and not _same(one, copy):
            raise Refused(f"{method} changed its input")
    return packing.packed(answer)


@contextlib.contextmanager
def _filled():
    """Memory that is handed out uninitialised is filled, so that padding which nobody wrote shows."""
    import torch

    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(False, warn_only=False)


def _same(one, other):
    import torch

    return bool(((one == other) | (one != one)).all()) if one.dtype != torch.uint8 else bool((one == other).all())


CALLS = {"open_library": open_library, "call_library": call_library}
