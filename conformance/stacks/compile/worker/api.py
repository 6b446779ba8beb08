"""The calls that the harness makes, by name. Nothing heavy is imported before `compile_unit`."""

import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

from . import cache, cute_kernels, generated

_ROUTES = {"cutlass": "cutlass", "cute": "cute_kernels", "triton": "dot_scaled", "attention": "attention"}


def compile_unit(route, kind, arch, scheme, folder):
    """A CompileResult's fields. One target a process: what toolchains read from the environment is set once."""
    sys.dont_write_bytecode = True
    os.environ.update(generated.environment(arch, Path(folder) / "flashinfer"))
    os.environ.update(cute_kernels.environment(arch, folder))
    chosen = importlib.import_module(f".{_ROUTES[route]}", __package__)
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        key, measure = chosen.prepared(kind, arch, scheme, inner)
        key = cache.key(key, _own_sources())
        found = cache.get(key)
        if found is None:
            started = time.monotonic()
            found = measure()
            found.setdefault("seconds", round(time.monotonic() - started, 1))
            found["toolchain"] = chosen.tool_versions()
            cache.put(key, found)
            return {**found, "cached": False}
    return {**found, "cached": True}


def _own_sources():
    """What measures is part of what is measured: our modules as they were sent here."""
    return dict(sorted(getattr(globals()["__loader__"], "sources", {}).items()))


CALLS = {"compile_unit": compile_unit}
