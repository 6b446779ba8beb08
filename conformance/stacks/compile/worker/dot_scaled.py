"""Triton's `tl.dot_scaled` on block-scaled operands, compiled for the target: which MMA does it come to?

The kernel is ours and a plain tiled product; no production path runs it. It says what a Triton MoE could be on the
target.
"""

import importlib
import resource
import sys
import tempfile
import time
from pathlib import Path

from . import binary, cache
from .problems import Missing

PAIRS = (("e4m3", "e4m3"), ("e4m3", "e2m1"), ("e2m1", "e2m1"))
_TILE, _STAGES, _WARPS = (128, 128, 128), 2, 8
_OVERSIZE, _OVERSIZE_STAGES = (128, 256, 256), 4
_POINTERS = {"e4m3": "*fp8e4nv", "e2m1": "*u8"}
_PACKED = {"e4m3": 1, "e2m1": 2}

#: Triton reads a kernel's source from a file.
_SOURCE = '''
import triton
import triton.language as tl

@triton.jit
def product(a, a_scale, b, b_scale, c, K, A: tl.constexpr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
            T: tl.constexpr, PA: tl.constexpr, PB: tl.constexpr, STAGES: tl.constexpr):
    """c (M, N) = a (M, K) times b (N, K) transposed; an E8M0 scale for 32 elements of K."""
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    in_a, in_b, groups = tl.arange(0, T // PA), tl.arange(0, T // PB), tl.arange(0, T // 32)
    total = tl.zeros((M, N), tl.float32)
    for k in tl.range(0, K, T, num_stages=STAGES):
        x = tl.load(a + rows[:, None] * (K // PA) + (k // PA + in_a)[None, :])
        y = tl.load(b + cols[None, :] * (K // PB) + (k // PB + in_b)[:, None])
        x_scale = tl.load(a_scale + rows[:, None] * (K // 32) + (k // 32 + groups)[None, :])
        y_scale = tl.load(b_scale + cols[:, None] * (K // 32) + (k // 32 + groups)[None, :])
        total = tl.dot_scaled(x, x_scale, A, y, y_scale, B, total)
    tl.store(c + rows[:, None] * N + cols[None, :], total)
'''


def tool_versions():
    return {"triton": cache.version("triton")}


def prepared(kind, arch, scheme, folder):
    """(cache key, function that measures)"""
    if not cache.version("triton"):
        raise Missing(f"triton is not installed in {sys.executable}: pip install triton")
    key = cache.key("triton", kind, arch, cache.record("triton"), tool_versions())
    return key, lambda: _measured(kind, int(arch[3:-1]), folder)


def _measured(kind, capability, folder):
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        path = Path(inner) / "conformance_dot_scaled.py"
        path.write_text(_SOURCE)
        sys.path.insert(0, inner)
        try:
            function = importlib.import_module(path.stem).product
            if kind == "oversize":
                made = [_compiled(function, capability, "e4m3", "e4m3", _OVERSIZE, _OVERSIZE_STAGES)]
            else:
                made = [_compiled(function, capability, a, b, _TILE, _STAGES) for a, b in PAIRS]
        finally:
            sys.path.remove(inner)
            sys.modules.pop(path.stem, None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"kernels": made, "seconds": round(time.monotonic() - started, 1), "megabytes": peak, "notes": []}


def _compiled(function, capability, a, b, tile, stages):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    m, n, k = tile
    sizes = {"A": a, "B": b, "M": m, "N": n, "T": k, "PA": _PACKED[a], "PB": _PACKED[b], "STAGES": stages}
    pointers = {"a": _POINTERS[a], "a_scale": "*u8", "b": _POINTERS[b], "b_scale": "*u8", "c": "*fp32", "K": "i32"}
    source = ASTSource(
        fn=function,
        signature=pointers | dict.fromkeys(sizes, "constexpr"),
        constexprs=sizes,
        attrs={(index,): [["tt.divisibility", 16]] for index in range(len(pointers))},
    )
    options = {"num_stages": stages, "num_warps": _WARPS}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    name = f"{a} x {b}" if tile == _TILE else f"{a} x {b} {m}x{n}x{k}, {stages} stages"
    found = binary.described(compiled.asm["cubin"], compiled.asm["ptx"])
    return {"name": name, **found, "shared": compiled.metadata.shared, "threads": 32 * compiled.metadata.num_warps}
