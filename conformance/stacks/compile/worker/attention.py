"""FlashInfer's sparse MLA attention for DeepSeek-V4 on SM120 and SM121, through nvcc: one kernel for decode, one for
prefill over two caches, with the template arguments of FlashInfer's own dispatch at 32 heads (24 of a rank at TP3).

Dynamic shared memory and threads are constants of FlashInfer's own resource tables, written into the unit and read off
its PTX.
"""

import re
from pathlib import Path

from . import binary, cache, generated, nvcc, toolchain
from .problems import Unfit, Unsupported

_ROOT = "flashinfer/attention/sparse_mla_sm120"
_HEADS = 32
#: name -> (header, what is kept, shared bytes, threads). Source: FlashInfer 0.7.2, execution/*_launch.cuh
#: and csrc/sparse_mla_sm120/attention_resolve.cu.
_UNITS = {
    f"sparse MLA decode, {_HEADS} heads": (
        "execution/decode_launch.cuh",
        f"execution::launch_decode<ModelType::DSV4, {_HEADS}>",
        "Fp8DecodeSharedLayout<ModelType::DSV4>::TOTAL_BYTES",
        "DecodeTileCfg<ModelType::DSV4>::BASE_BLOCK_THREADS",
    ),
    f"sparse MLA prefill over two caches, {_HEADS} heads": (
        "kernels/fp8_prefill/prefill_mg.cuh",
        f"sparse_mla_prefill_mg_dual_kernel<ModelType::DSV4, QkComputeMode::BF16, {_HEADS}, 0, 0, MG_N_HG_DEFAULT>",
        "SmemLayoutMG<ModelType::DSV4, QkComputeMode::BF16>::TOTAL",
        "BLOCK_THREADS",
    ),
}
_TARGETS = ("sm_120a", "sm_121a")


def tool_versions():
    return toolchain.versions() | {"flashinfer": cache.version("flashinfer-python")}


def prepared(kind, arch, scheme, folder):
    """(cache key, function that measures)"""
    if arch not in _TARGETS or kind != "kernel":
        raise Unsupported(f"FlashInfer's sparse MLA comes as sources for {', '.join(_TARGETS)}, not for {arch}")
    root = generated.with_sources("data/include")
    sources = [cache.tree(root / "data/include"), cache.tree(root / "jit"), cache.tree(root / "data/cccl")]
    key = cache.key("attention", kind, arch, scheme, sources, generated.read_by_flags(), tool_versions())
    return key, lambda: _measured(arch, Path(folder))


def _measured(arch, folder):
    toolchain.free_memory(toolchain.FRONT_END)
    flags = generated.sparse_mla_flags()
    runs = {name: _compiled(name, flags, folder / f"unit{index}") for index, name in enumerate(_UNITS)}
    return {
        "kernels": [kernel for kernel, _ in runs.values()],
        "seconds": round(sum(run.seconds for _, run in runs.values()), 1),
        "megabytes": max(run.megabytes for _, run in runs.values()),
        "notes": ["shared memory is the launch's own and the kernel's static part"],
    }


def _compiled(name, flags, folder):
    """(fields of a Compiled, nvcc's run)"""
    header, kept, shared, threads = _UNITS[name]
    folder.mkdir()
    source = folder / "kernel.cu"
    source.write_text(
        f"#include <{_ROOT}/{header}>\n"
        "using namespace flashinfer::sparse_mla_sm120;\nusing namespace flashinfer;\n"
        f"auto* conformance_kept = &{kept};\n"
        f"__device__ int conformance_shared = {shared};\n__device__ int conformance_threads = {threads};\n"
    )
    keep = ["-keep", "-keep-dir", str(folder), "-Xptxas", "-v"]
    run = nvcc.run(["-cubin", *flags, *keep, "-o", str(folder / "kernel.cubin"), str(source)], folder)
    if run.code:
        return {"name": name, "rejected": run.errors[0]}, run
    ptx = (folder / "kernel.ptx").read_text()
    spills = [(int(s), int(w)) for s, w in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", run.said)]
    if not spills:
        raise Unfit("ptxas -v tells no spills")
    static = max((int(size) for size in re.findall(r"(\d+) bytes smem", run.said)), default=0)
    return {
        "name": name,
        **binary.described((folder / "kernel.cubin").read_bytes(), ptx),
        "shared": _constant(ptx, "conformance_shared") + static,
        "threads": _constant(ptx, "conformance_threads"),
        "spill_stores": sum(stores for stores, _ in spills),
        "spill_loads": sum(loads for _, loads in spills),
    }, run


def _constant(ptx, name):
    found = re.search(rf"\.global \.align 4 \.u32 \w*{name}\w* = (\d+);", ptx)
    if not found:
        raise Unfit(f"the PTX holds no constant {name}")
    return int(found[1])
