"""FlashInfer's CuTe DSL kernels for the MoE, compiled from fake tensors, without a driver.

The toolchain takes a tile that cannot be launched without a word, so shared memory is read off the launch itself: the
host code holds it as a constant. Where the kernel tells its storage's size as well, both must agree.
"""

import importlib
import re
import resource
import time
from functools import partial

from . import binary, cache, generated
from .problems import Missing, Unfit

#: Launch limits that tracing would ask a driver for: bytes of a block, and the SM's own 1 KiB more.
_LIMITS = {"sm_90a": 232448, "sm_100a": 232448, "sm_103a": 232448, "sm_120a": 101376, "sm_121a": 101376}
_RESERVED = 1024
#: DeepSeek-V4-Flash, TP3: GEMM1 is 2 x 768 columns of 4096 inputs. Grouped kernels depend on divisibility alone.
_COLUMNS, _INPUTS, _EXPERTS, _TOKENS = 1536, 4096, 2, 8
#: Blocks of the persistent grid: of no consequence for what a block needs.
_BLOCKS = 148
_KERNELS = "flashinfer.gemm.kernels"


def environment(arch, folder):
    """What the DSL reads when it is first imported, by whatever: target, and what it shall keep where."""
    return {
        "CUTE_DSL_ARCH": arch,
        "CUTE_DSL_KEEP": "ptx,cubin",
        "CUTE_DSL_DUMP_DIR": str(folder),
        "CUTE_DSL_DISABLE_FILE_CACHING": "1",
    }


def tool_versions():
    return {
        "cutlass-dsl": cache.version("nvidia-cutlass-dsl"),
        "flashinfer": cache.version("flashinfer-python"),
        "triton": cache.version("triton"),  # its cuobjdump reads the cubins
    }


def prepared(kind, arch, scheme, folder):
    """(cache key, function that measures)"""
    if not cache.version("nvidia-cutlass-dsl"):
        raise Missing("nvidia-cutlass-dsl is not installed beside FlashInfer: pip install nvidia-cutlass-dsl")
    sources = [cache.tree(generated.installed() / name, suffixes=(".py",)) for name in _SOURCES]
    binaries = [cache.record(name) for name in ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base")]
    key = cache.key("cute", kind, arch, scheme, sources, binaries, tool_versions())
    return key, lambda: _measured(kind, arch)


#: Folders of FlashInfer that hold the kernels and what they are made of.
_SOURCES = ("gemm", "quantization", "fused_moe/cute_dsl", "cute_dsl")


def _measured(kind, arch):
    started = time.monotonic()
    try:
        helpers = importlib.import_module("cutlass.cutlass_dsl").cutlass.cuda_helpers
        importlib.import_module("flashinfer")
    except ImportError as error:
        raise Missing(f"FlashInfer's CuTe DSL kernels cannot be imported: {error}") from error
    # A launch that asks for several blocks an SM has the driver asked for the SM's shared memory at trace time.
    helpers.get_device_attribute = lambda *arguments, **named: _LIMITS[arch] + _RESERVED
    blackwell = arch.startswith("sm_10")
    if kind == "oversize":
        makers = {"dense MXFP8 256x128": lambda: _dense120((256, 128))}
        if blackwell:
            makers = {"dense MXFP8 128x128, storage for twice the target": lambda: _dense100(2 * _LIMITS[arch])}
    else:
        makers = {"mxfp8_quantize, swizzled scales": _quantiser}
        if blackwell:
            makers["dense MXFP8 128x128"] = lambda: _dense100(0)
        else:
            for tile in ((128, 128), (64, 128), (32, 128), (8, 128)):
                makers[f"grouped MXFP8 x MXFP4 {tile[0]}x{tile[1]}"] = partial(_grouped, *tile)
    kernels = [_described(name, *make()) for name, make in makers.items()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"kernels": kernels, "seconds": round(time.monotonic() - started, 1), "megabytes": peak, "notes": []}


def _described(name, compiled, storage):
    """`storage`: bytes that the kernel says its shared storage takes, None where it does not say."""
    cubin, ptx, host = compiled.__cubin__, compiled.__ptx__, str(compiled.ir_module)
    if not cubin or not ptx:
        raise Unfit(f"{name}: the DSL kept no cubin and no PTX (CUTE_DSL_KEEP)")
    shared, threads = launch(host)
    if storage is not None and storage > shared:
        raise Unfit(f"{name}: launched with {shared} bytes, its storage takes {storage}")
    return {"name": name, **binary.described(cubin, ptx), "shared": shared, "threads": threads}


#: Grid, block, dynamic shared memory, stream and attributes, as the host code fills them in.
_CONFIG = r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64, "


def launch(host):
    """(dynamic shared bytes, threads of a block) of the one launch in host code. Raises Unfit without constants."""
    found = {config for body in re.split(r"^  llvm\.func ", host, flags=re.M) for config in _launches(body)}
    if len(found) != 1:
        raise Unfit(f"the host code holds {len(found)} launches with constant shared memory and block; one was due")
    return found.pop()


def _launches(body):
    """The configurations that one function of host code fills in; names of values are the function's own."""
    constants = {name: int(value) for name, value in re.findall(r"(%\w+) = llvm\.mlir\.constant\((\d+) : i\d+\)", body)}
    fields = {}
    for place, config, field in re.findall(r"(%\w+) = llvm\.getelementptr (%\w+)\[0, ([\d, ]+)\] .*" + _CONFIG, body):
        fields[place] = config, field
    stored: dict[str, dict[str, str]] = {}
    for value, place in re.findall(r"llvm\.store (%\w+), (%\w+) : i\d+, !llvm\.ptr", body):
        if place in fields:
            config, field = fields[place]
            stored.setdefault(config, {})[field] = value
    for written in stored.values():
        wanted = [written.get(field) for field in ("2", "1, 0", "1, 1", "1, 2")]
        if all(name in constants for name in wanted):
            shared, x, y, z = (constants[name] for name in wanted)
            yield shared, x * y * z


def _quantiser():
    """vLLM's activation quantiser on SM100 and later."""
    module = importlib.import_module("flashinfer.quantization.kernels.mxfp8_quantize")
    make = module._get_compiled_kernel_mxfp8_swizzled
    compiled, _ = getattr(make, "__wrapped__", make)("bf16", _INPUTS, False)
    return compiled, None


def _dense(kernel):
    """A dense MXFP8 product, rows and columns symbolic."""
    import cutlass

    build = importlib.import_module("flashinfer.gemm.gemm_mm_fp4_cute_dsl")._make_blockscaled_gemm_compile_fn
    types = cutlass.Float8E4M3FN, cutlass.Float8E8M0FNU, cutlass.BFloat16
    compiled = build(kernel, *types, 32, False, 1, _COLUMNS // 128, _INPUTS // 128, 1, _BLOCKS)()
    return compiled, kernel.shared_storage.size_in_bytes()


def _dense120(tile):
    module = importlib.import_module(f"{_KERNELS}.dense_blockscaled_gemm_sm120_b12x")
    return _dense(module.Sm120B12xBlockScaledDenseGemmKernel(32, tile, (1, 1), mma_k=32, tile_k=128))


def _dense100(capacity):
    """`capacity`: bytes that the kernel is told it may fill; 0 leaves it alone."""
    module = importlib.import_module(f"{_KERNELS}.dense_blockscaled_gemm_sm100")
    kernel = module.Sm100BlockScaledPersistentDenseGemmKernel(32, (128, 128), (1, 1))
    if capacity:
        kernel.smem_capacity = capacity
    return _dense(kernel)


def _grouped(m, n):
    """Grouped MXFP8 x MXFP4 of SM120 and SM121, the tile's own best number of stages."""
    import cutlass.cute as cute
    import torch

    place = "flashinfer.fused_moe.cute_dsl.blackwell_sm12x"
    ops = importlib.import_module(f"{place}.moe_mxfp8_mxfp4_gemm")
    kernels = importlib.import_module(f"{place}.kernel_moe_mxfp8_mxfp4_gemm")
    op = ops.CuteDslSm120GroupedMxfp8Mxfp4Op(
        n=_COLUMNS, k=_INPUTS, tile=(m, n, ops.PLAIN_TILE_K), out_dtype=torch.bfloat16
    )
    packed = ops.Sm120SfConfigMxfp8Mxfp4.PACK_NSF
    groups_a, groups_b = (-(-_INPUTS // (rank * packed)) for rank in (ops.GRANK_A, ops.GRANK_B))
    setattr(kernels, "_stream", cute.runtime.make_fake_stream)  # noqa: B010
    arguments = kernels.make_args(
        torch.zeros(_TOKENS, _INPUTS, dtype=torch.float8_e4m3fn),
        torch.zeros(groups_a, 128, dtype=torch.int32),
        torch.zeros(_EXPERTS, _COLUMNS, _INPUTS // 2, dtype=torch.uint8),
        torch.zeros(_EXPERTS, groups_b, _COLUMNS, dtype=torch.int32),
        torch.zeros(_TOKENS, _COLUMNS, dtype=torch.bfloat16),
        torch.zeros(_EXPERTS + 1, dtype=torch.int32),
        op.cfg.epi,
        op.cfg.TILE,
    )
    return cute.compile(op.build(_BLOCKS), *arguments), op.cfg.smem_bytes
