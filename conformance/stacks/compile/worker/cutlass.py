"""FlashInfer's CUTLASS MoE for MXFP4 weights, through nvcc.

`tiles`: the compiler's front end alone is asked for `sizeof(SharedStorage)`, stages and threads of every production
tile (an incomplete type's name is in the error message that stops it). `kernel`: one production instantiation, its
line unchanged, to a cubin. `oversize`: the same with a tile that leaves no room for two stages.
"""

import re
from pathlib import Path

from . import binary, cache, generated, nvcc, toolchain
from .problems import Unfit

_SPACES = "namespace tensorrt_llm { namespace kernels { namespace cutlass_kernels_oss {"
_PROBE = "template <unsigned long, int, unsigned, int, int, int, int, int, int, int> struct conformance_probe;"
_GEMM = r"using GemmGrouped =[\s\\]*cutlass::gemm::device::GemmUniversalAdapter<GemmKernel>;"
_TILE = (128, 128, 128)


class _Grouped:
    """SM100 and later: MXFP8 x MXFP4, block-scaled. One macro line a kernel."""

    launcher = "moe_gemm_tma_ws_launcher.inl"
    pattern = r"INSTANTIATE_TMA_WARP_SPECIALIZED_MOE_GEMM\(Sm1\d+, __nv_fp8_e4m3, SafeFP4, __nv_bfloat16,[^;]*;"
    #: Values of the probe after shared bytes, stages and threads.
    values = "CTA_M_, CTA_N_, CTA_K_, int(FUSION), int(SwapAB), CGA_M_ * CGA_N_, int(DYNAMIC_CGA)"
    newline = "\\\n"
    notes = ()

    @staticmethod
    def name(line):
        """`128x64x128 FINALIZE swapped, cluster 2, dynamic cluster`"""
        words = [word.strip() for word in line[line.index("(") + 1 : line.rindex(")")].split(",")]
        m, n, k, cluster_m, cluster_n = (int(word) for word in words[7:12])
        swap, dynamic = words[16] == "true", words[14] == "true"
        return _Grouped.words((m, n, k), words[6], swap, cluster_m * cluster_n, dynamic)

    @staticmethod
    def words(tile, fusion, swap, cluster, dynamic):
        more = [f" cluster {cluster}"] * (cluster > 1) + [" dynamic cluster"] * dynamic
        return "x".join(map(str, tile)) + f" {fusion}" + " swapped" * swap + "".join(more)

    @staticmethod
    def probed(values):
        m, n, k, fusion, swap, cluster, dynamic = values
        return _Grouped.words((m, n, k), ("NONE", "ACTIVATION", "GATED", "FINALIZE")[fusion], swap, cluster, dynamic)

    @staticmethod
    def asked(text, lines):
        """Launcher and lines as they are: the macro makes plain functions, whose bodies the front end looks at."""
        return text, list(lines)

    @staticmethod
    def resized(line, tile):
        return re.sub(r"\b128, 128, 128\b", ", ".join(map(str, tile)), line)

    @staticmethod
    def filters(module):
        """Tiles of the generator that FlashInfer never offers as tactics: none here."""
        return []

    chosen = "128x128x128 NONE"


#: (FlashInfer's words, the same on a tile): SM90's tiles that do not fit are generated and left out of the tactics.
_FILTERS = (
    (
        "if (tile_k == 256 && ((tile_m == 128 && tile_n == 256) || (tile_m == 256 && tile_n == 128))) {return false;}",
        lambda tile: tuple(tile) in ((128, 256, 256), (256, 128, 256)),
    ),
    ("if (tile_k == 512 && tile_n >= 128) { return false; }", lambda tile: tile[2] == 512 and tile[1] >= 128),
)


class _Mixed:
    """SM90: BF16 x MXFP4, upcast in registers. One explicit instantiation a kernel; clusters share a tile's storage."""

    launcher = "moe_gemm_tma_ws_mixed_input_launcher.inl"
    pattern = r"template void sm90_generic_mixed_moe_gemm_kernelLauncher<__nv_bfloat16, SafeFP4, __nv_bfloat16,[^;]*;"
    values = (
        "int(cute::size<0>(CTAShape{})), int(cute::size<1>(CTAShape{})), int(cute::size<2>(CTAShape{})), "
        "int(cute::is_same_v<KernelSchedule, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong>), "
        "int(cute::size(ClusterShape{})), 0, 0"
    )
    newline = "\n"
    notes = ("asked at cluster 1x1x1; with FlashInfer 0.7.2 each tile took the same bytes at 2x2x1",)

    @staticmethod
    def name(line):
        sizes = [int(n) for n in re.findall(r"cute::Int<(\d+)>", line)]
        return _Mixed.words(tuple(sizes[:3]), "KernelTmaWarpSpecializedPingpong" in line, sizes[3] * sizes[4])

    @staticmethod
    def words(tile, pingpong, cluster):
        schedule = "pingpong" if pingpong else "cooperative"
        return "x".join(map(str, tile)) + f" {schedule}" + f" cluster {cluster}" * (cluster > 1)

    @staticmethod
    def probed(values):
        m, n, k, pingpong, cluster, _, _ = values
        return _Mixed.words((m, n, k), pingpong, cluster)

    @staticmethod
    def asked(text, lines):
        """The front end leaves a function template's body to later stages, unless its return type hangs on it."""
        name = "sm90_generic_mixed_moe_gemm_kernelLauncher_impl"
        more = "cutlass::gemm::collective::MixedInputScaleMode::kPostMma, tkc::MainloopScheduleType::AUTO"
        arguments = [_arguments(line) for line in lines]
        return text.replace(f"void {name}(", f"auto {name}(", 1), [
            f"static_assert(sizeof(&{name}<{given}, {more}>) > 0);" for given in arguments
        ]

    @staticmethod
    def resized(line, tile):
        old = "cute::Int<128>, cute::Int<128>, cute::Int<128>"
        return line.replace(old, ", ".join(f"cute::Int<{size}>" for size in tile), 1)

    @staticmethod
    def filters(module):
        """FlashInfer's own filters of tactics for BF16 x MXFP4, those whose text its binding still has."""
        binding = module.csrc / "fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu"
        text = "".join(binding.read_text().split())
        return [leaves_out for written, leaves_out in _FILTERS if "".join(written.split()) in text]

    chosen = "128x128x128 cooperative"


#: Tiles whose two stages do not fit beside the epilogue, by the target's shared memory.
_OVERSIZE = {"sm_90a": (256, 256, 512), "sm_100a": (128, 256, 512), "sm_103a": (128, 256, 512)}


def tool_versions():
    return toolchain.versions() | {"flashinfer": cache.version("flashinfer-python")}


def prepared(kind, arch, scheme, folder):
    """(cache key, function that measures): FlashInfer is not even imported before that is called."""
    key = cache.key("cutlass", kind, arch, scheme, generated.content(), tool_versions())
    return key, lambda: _made(kind, arch, scheme, Path(folder))


def _made(kind, arch, scheme, folder):
    family = _Mixed if scheme == "bf16" else _Grouped
    module = generated.Module(arch)
    lines = {family.name(line): line for line in re.findall(family.pattern, module.text)}
    if family is _Mixed:
        lines = {name: line for name, line in lines.items() if "cluster" not in name}
    if family.chosen not in lines:
        raise Unfit(f"FlashInfer generates no {family.chosen} for {arch}; it has {', '.join(sorted(lines)[:6])}")
    return {"tiles": _tiles, "kernel": _kernel, "oversize": _oversize}[kind](module, family, lines, folder)


def _tiles(module, family, lines, folder):
    run, probed = _front_end(module, family, lines.values(), folder)
    if probed.keys() != lines.keys():
        lost = sorted(lines.keys() ^ probed.keys())
        told = [error for error in run.errors if "conformance_probe" not in error][:1]
        raise Unfit(f"{len(probed)} of {len(lines)} tiles answered the probe (differ: {lost[:4]}): {told}")
    filters = family.filters(module)
    made = [
        _measured(name, values, family) | {"offered": not any(leaves_out(values[3:6]) for leaves_out in filters)}
        for name, values in sorted(probed.items())
    ]
    notes = ["tiles: the compiler's front end alone; nothing was made for a device"]
    return _result(made, run, [*notes, *family.notes])


def _measured(name, values, family):
    """Values of the probe: shared bytes, stages, threads, tile, and what `family` adds."""
    shared, stages, threads, *rest = values
    least = _stage_bytes(rest[:3], rest[5], family)
    return {"name": name, "shared": shared, "stages": stages, "threads": threads, "stage_bytes": least}


def _front_end(module, family, lines, folder):
    """(run, {name: values of the probe}): the front end over a copy of FlashInfer's launcher, with the probe behind the
    kernel's type, and these kernels. The host's pass comes first in nvcc, and an error ends it before anything is made.
    """
    probe = f" if (sizeof(conformance_probe<sizeof(typename GemmKernel::SharedStorage), {family.newline}"
    probe += f"CollectiveMainloop::DispatchPolicy::Stages, GemmKernel::MaxThreadsPerBlock, {family.newline}"
    probe += f"{family.values}>)) {{}}"
    toolchain.free_memory(toolchain.FRONT_END)
    launcher = module.launchers / family.launcher
    text, patched = re.subn(_GEMM, lambda found: found[0] + probe, launcher.read_text())
    if patched != 1:
        raise Unfit(f"{launcher.name} defines GemmGrouped {patched} times; once was due")
    text = re.sub(r'#include "(\.\./[^"]*|moe_gemm_tma_ws[^"]*\.h)"', lambda f: _absolute(launcher, f[1]), text)
    text, asked = family.asked(text, lines)
    source = folder / "front.cu"
    source.write_text(f"{_PROBE}\n{text}\n{_SPACES}\n" + "\n".join(asked) + "\n}}}\n")
    limit = ["-Xcudafe", "--error_limit=4000"]
    run = nvcc.run(["-c", *module.flags, *limit, "-o", f"{source}.o", str(source)], folder)
    found = set(re.findall(r'incomplete type "conformance_probe<([^>]*)>', run.said))
    values = [[int(re.sub(r"[UL]+$", "", word.strip())) for word in one.split(",")] for one in sorted(found)]
    return run, {family.probed(v[3:]): v for v in values}


def _stage_bytes(tile, cluster, family):
    """The least that a stage holds in one block: activations of one or two bytes an element, weights of half a byte.
    Swapped or not, the tile is the block's M x N x K, either side may hold the activations, and two blocks of a cluster
    share the N side."""
    m, n, k = tile
    n, wide = n // max(1, cluster), 2 if family is _Mixed else 1
    return min(m * k * wide + n * k // 2, n * k * wide + m * k // 2)


def _arguments(line):
    """The template arguments of an explicit instantiation."""
    head = line[: line.index("GroupedGemmInput")]
    return head[head.index("Launcher<") + len("Launcher<") : head.rindex(">")]


def _absolute(launcher, name):
    return f'#include "{(launcher.parent / name).resolve()}"'


def _kernel(module, family, lines, folder):
    toolchain.free_memory(toolchain.UNIT)
    line = lines[family.chosen]
    source, cubin = folder / "kernel.cu", folder / "kernel.cubin"
    inside = f"tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers/{family.launcher}"
    source.write_text(f'#include "{inside}"\n{_SPACES}\n{line}\n}}}}}}\n')
    keep = ["-keep", "-keep-dir", str(folder)]
    run = nvcc.run(["-cubin", *module.flags, *keep, "-Xptxas", "-v", "-o", str(cubin), str(source)], folder)
    if run.code:
        return _result([{"name": family.chosen, "rejected": run.errors[0]}], run, [])
    spills = [(int(s), int(w)) for s, w in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", run.said)]
    if not spills:
        raise Unfit("ptxas -v tells no spills")
    made = {
        "name": family.chosen,
        **binary.described(cubin.read_bytes(), (folder / "kernel.ptx").read_text()),
        "spill_stores": sum(stores for stores, _ in spills),
        "spill_loads": sum(loads for _, loads in spills),
    }
    return _result([made], run, [])


def _oversize(module, family, lines, folder):
    """SM90's sources take such a tile without a word: then its measured size is what there is to reject."""
    tile = _OVERSIZE.get(module.arch, (256, 128, 128))
    run, probed = _front_end(module, family, [family.resized(lines[family.chosen], tile)], folder)
    refused = next((error for error in run.errors if "conformance_probe" not in error), "")
    made = [_measured(name, values, family) for name, values in probed.items()]
    if refused or not made:
        made = [{"name": "x".join(map(str, tile)), "rejected": refused or "no kernel and no error"}]
    return _result(made, run, [])


def _result(kernels, run, notes):
    return {"kernels": kernels, "seconds": run.seconds, "megabytes": run.megabytes, "notes": notes}
