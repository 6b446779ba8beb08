"""Where nvcc and cuobjdump are, what they are, and which headers nvcc lacks. Raises Missing with what to install."""

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from .problems import Missing, Unfit

#: One version for all: nvcc refuses the headers of another.
_INSTALL = "pip install nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-cccl==13.0.*"
#: Bytes that must be free: for a production unit to a cubin (the largest known takes 6.1 GB), for the front end (4.1).
UNIT, FRONT_END = 7_000_000_000, 5_000_000_000


def packages():
    """Folders of this interpreter that may hold NVIDIA's packages."""
    return [Path(path) for path in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))]


def _candidates():
    """FlashInfer's own order (its JIT would take the same), then the packages of this interpreter."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name]) / "bin" / "nvcc"
    if found := shutil.which("nvcc"):
        yield Path(found)
    yield Path("/usr/local/cuda/bin/nvcc")
    for root in packages():
        yield from sorted(root.glob("nvidia/cu*/bin/nvcc"), reverse=True)


@functools.cache
def nvcc():
    """Path of an nvcc that answers. Needs a host compiler too."""
    for path in _candidates():
        if os.access(path, os.X_OK):
            if not (shutil.which("g++") or shutil.which("c++")):
                raise Missing(f"{path} needs a host compiler and there is no g++: install gcc with its C++ compiler")
            return str(path)
    raise Missing(f"no nvcc by CUDA_HOME, on PATH or beside {sys.executable}; install one: {_INSTALL}")


@functools.cache
def cuobjdump():
    """Path of cuobjdump: nvcc's own, or the one that Triton brings."""
    beside = [Path(found).parent / "cuobjdump" for found in _candidates()]
    beside += [root / "triton/backends/nvidia/bin/cuobjdump" for root in packages()]
    for path in beside:
        if os.access(path, os.X_OK):
            return str(path)
    raise Missing("no cuobjdump beside nvcc or in Triton; install one: pip install triton")


@functools.cache
def versions():
    """nvcc, its ptxas and the host compiler, as they tell of themselves."""
    own = _said([nvcc(), "--version"], r"V(\d+\.\d+\.\d+)")
    assembler = Path(_settings()["TOP"]) / "bin" / "ptxas"
    host = shutil.which("g++") or shutil.which("c++") or ""
    return {
        "nvcc": own,
        "ptxas": _said([str(assembler), "--version"], r"V(\d+\.\d+\.\d+)"),
        "g++": _said([host, "-dumpfullversion"], r"(\S+)"),
    }


def _said(command, pattern):
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except OSError as error:
        raise Missing(f"{command[0]} cannot be run: {error.strerror}; install nvcc anew: {_INSTALL}") from None
    found = re.search(pattern, text)
    if not found:
        raise Unfit(f"{command[0]} does not tell its version: {text[:80]!r}")
    return found[1]


@functools.cache
def _settings():
    """TOP and INCLUDES of nvcc's dry run: where its own headers are, whatever script stands before it."""
    run = subprocess.run(
        [nvcc(), "--dryrun", "-E", "-x", "cu", os.devnull], capture_output=True, text=True, timeout=60, check=False
    )
    told = dict(re.findall(r"^#\$ (\w+)=(.*)$", run.stderr, re.M))
    if "TOP" not in told:
        raise Unfit(f"{nvcc()} --dryrun tells no TOP: {run.stderr[:80]!r}")
    return told


def missing_headers(folder):
    """A folder of links to the headers that nvcc's own folders lack and this interpreter's packages have.

    Links to no other: a package's crt may be newer than nvcc, and must not come before its own.
    """
    top = Path(_settings()["TOP"])
    has = [top / "include", *map(Path, re.findall(r'-I"?([^"\s]+)', _settings().get("INCLUDES", "")))]
    links = Path(folder) / "headers"
    links.mkdir(exist_ok=True)
    for root in packages():
        for path in root.glob("nvidia/*/include/*"):
            link = links / path.name
            if not link.exists() and not any((known / path.name).exists() for known in has):
                link.symlink_to(path)
    return str(links)


def free_memory(needed):
    """Raises Unfit where so many bytes are not free (Linux; elsewhere nothing is known)."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    free = int(found[1]) * 1024 if found else needed
    if free < needed:
        raise Unfit(f"this nvcc run needs {needed / 1e9:.0f} GB of memory, {free / 1e9:.1f} GB are free: free some")
