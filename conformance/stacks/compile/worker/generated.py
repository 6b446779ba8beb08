"""FlashInfer's own MoE module for one target: its compile flags and the kernels that its generator instantiates.

Nothing is taken from memory: the generator of the installed FlashInfer writes sources and build file into a folder of
ours, and both are read back.
"""

import importlib
import importlib.util
import os
import re
from pathlib import Path

from . import cache
from .problems import Missing, Unfit, Unsupported

#: Target -> FlashInfer's function that makes the module, and the module's name.
_MODULES = {
    "sm_90a": ("gen_cutlass_fused_moe_sm90_module", "9.0a"),
    "sm_100a": ("gen_cutlass_fused_moe_sm100_module", "10.0a"),
    "sm_103a": ("gen_cutlass_fused_moe_sm103_module", "10.3a"),
    "sm_120a": ("gen_cutlass_fused_moe_sm120_module", "12.0a"),
    "sm_121a": ("gen_cutlass_fused_moe_sm120_module", "12.1a"),
}
#: Of no use for a cubin: how the fat binary is packed.
_PACKING = ("-Xfatbin", "--compress-mode", "-static-global-template-stub", "--threads")


def environment(arch, folder):
    """What FlashInfer reads when it is imported."""
    if arch not in _MODULES:
        raise Unsupported(f"FlashInfer's MoE is not known for {arch}; known: {', '.join(_MODULES)}")
    return {"FLASHINFER_CUDA_ARCH_LIST": _MODULES[arch][1], "FLASHINFER_WORKSPACE_BASE": str(folder)}


class Module:
    """`flags` for nvcc without the packing, `text` of all generated sources, `launchers`: folder of the .inl files."""

    def __init__(self, arch):
        try:
            made = importlib.import_module("flashinfer.jit.fused_moe")
            jit_env = importlib.import_module("flashinfer.jit.env")
        except ImportError as error:
            raise Missing(f"flashinfer is not importable: {error}; pip install flashinfer-python") from error
        name = _MODULES[arch][0]
        if not hasattr(made, name):
            raise Unsupported(f"this FlashInfer has no {name}")
        spec = getattr(made, name)()
        spec.write_ninja()
        self.arch = arch
        self.flags = _flags(Path(spec.ninja_path).read_text())
        kernels = [p for p in map(Path, spec.sources) if p.name.endswith(".generated.cu") and "gemm_grouped" in p.parts]
        self.text = "\n".join(path.read_text() for path in sorted(kernels))
        self.csrc = Path(jit_env.FLASHINFER_CSRC_DIR)
        self.launchers = self.csrc / "nv_internal/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers"
        if not kernels or not self.launchers.is_dir():
            raise Unfit(f"FlashInfer generates no grouped kernels for {arch}, or keeps its launchers elsewhere")


def installed():
    """Folder of the installed FlashInfer; nothing of it is imported. Raises Missing."""
    spec = importlib.util.find_spec("flashinfer")
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise Missing("flashinfer is not installed: pip install flashinfer-python")
    return Path(places[0])


def with_sources(part="data/csrc/nv_internal"):
    """Folder of the installed FlashInfer, which holds the kernel sources `part`. Raises Missing: some installs carry
    built kernels, and no sources."""
    root = installed()
    if not (root / part).is_dir():
        known = cache.version("flashinfer-python")
        whole = f"flashinfer-python=={known}" if known[:1].isdigit() else "flashinfer-python"
        raise Missing(
            f"the FlashInfer in {root} is trimmed: no kernel sources ({part}), so nothing can be compiled; "
            f"install the whole package: pip install --force-reinstall --no-deps {whole}"
        )
    return root


def content():
    """What the module's kernels and flags are made of, without making them: generator, headers, what flags read."""
    root = with_sources()
    parts = ("jit", "data/csrc/nv_internal", "data/cutlass/include", "data/include", "data/csrc/fused_moe")
    return cache.key([cache.tree(root / part) for part in parts if (root / part).is_dir()], *read_by_flags())


def read_by_flags():
    """What else FlashInfer's flags are made of: environment, and packages whose headers they name."""
    read = {name: os.environ.get(name, "") for name in ("FLASHINFER_EXTRA_CUDAFLAGS", "CC", "CXX")}
    return read, [cache.version(name) for name in ("apache-tvm-ffi", "torch")]


def sparse_mla_flags():
    """nvcc's flags of FlashInfer's own module of sparse MLA attention."""
    try:
        made = importlib.import_module("flashinfer.jit.mla")
    except ImportError as error:
        raise Missing(f"flashinfer is not importable: {error}; pip install flashinfer-python") from error
    if not hasattr(made, "gen_sparse_mla_sm120_module"):
        raise Unsupported("this FlashInfer has no gen_sparse_mla_sm120_module")
    spec = made.gen_sparse_mla_sm120_module()
    spec.write_ninja()
    return _flags(Path(spec.ninja_path).read_text())


def _flags(ninja):
    """nvcc's flags out of FlashInfer's build file. nvcc finds its own headers itself."""
    variables = dict(re.findall(r"^(\w+) = (.*)$", ninja.replace("$\n", " "), re.M))
    if not {"cuda_cflags", "common_cflags"} <= variables.keys():
        raise Unfit(f"FlashInfer's build file has no cuda_cflags and common_cflags: {sorted(variables)}")
    text = variables["cuda_cflags"].replace("$common_cflags", variables["common_cflags"])
    text = text.replace("-isystem $cuda_home/include", "")
    return [flag for flag in text.split() if not flag.startswith(_PACKING)]
