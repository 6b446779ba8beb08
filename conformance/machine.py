"""What the machine has, for `conformance doctor`."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import PackageNotFoundError, version

import msgspec

import hardware_profiles
from conformance.errors import StackError
from conformance.stacks import registry
from conformance.stacks.protocols import StackOptions


class Finding(msgspec.Struct, frozen=True):
    what: str
    ok: bool
    found: str
    advice: str = ""
    #: The cpu profile cannot run without it.
    needed: bool = False


def ready(findings: list[Finding]) -> bool:
    return all(f.ok for f in findings if f.needed)


def examine(vllm_python: str | None, vllm_source: str | None) -> list[Finding]:
    """Raises UsageError for an interpreter or a checkout that is none."""
    profile, words = hardware_profiles.found()
    return [
        Finding("python", sys.version_info >= (3, 11), sys.version.split()[0], needed=True),
        _package("torch", needed=True, advice="pip install torch"),
        Finding(
            "stack reference",
            "reference" in registry.names(),
            ", ".join(registry.names()) or "no stacks",
            "" if registry.names() else "pip install -e . in the clone",
            needed=True,
        ),
        Finding("gpu", profile is not None, words, "" if profile else "GPU profiles end INCOMPLETE here"),
        _stack("vllm", StackOptions(python=vllm_python, source=vllm_source)),
        _package("flashinfer-python", advice="pip install flashinfer-python, for the moe and attention layers"),
        _package("nvidia-cutlass-dsl", advice="pip install nvidia-cutlass-dsl, for compile claims"),
        _tool("nvcc", "the CUDA toolkit, for compile claims"),
        _tool("git", "git, so that evidence can name commits"),
    ]


def _package(name: str, advice: str, needed: bool = False) -> Finding:
    try:
        return Finding(name, True, version(name), needed=needed)
    except PackageNotFoundError:
        return Finding(name, False, "not installed", advice, needed)


def _tool(name: str, advice: str) -> Finding:
    where = shutil.which(name)
    return Finding(name, where is not None, where or "not on the path", "" if where else advice)


def _stack(name: str, options: StackOptions) -> Finding:
    try:
        stack = registry.open_stack(name, options)
        try:
            info = stack.info()
        finally:
            stack.close()
    except StackError as error:
        return Finding(f"stack {name}", False, str(error))
    return Finding(f"stack {name}", True, f"{info.version} ({info.python}); backends: {', '.join(info.backends)}")
