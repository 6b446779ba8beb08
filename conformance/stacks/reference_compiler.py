"""What compilers make of right kernels, written down by hand, so that checks of compiled kernels have something that is
right to look at, and faults something to spoil. Nothing is compiled."""

from __future__ import annotations

from conformance.errors import NotSupported
from conformance.stacks.compile.protocol import Compiled, CompileResult, CompileUnit

_TILE = "128x128x128 NONE"
_MIXED = "QMMA.SF.16832.F32.E4M3.E2M1.E8"
_MIXED_PTX = "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e2m1.f32.ue8m0"
_SCALED = _MIXED.replace("E2M1", "E4M3"), _MIXED_PTX.replace("e2m1", "e4m3")
_FP8 = "QMMA.16832.F32.E4M3.E4M3", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"
_UPCAST = "HMMA.16816.F32.BF16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#: Toolchains whose figures these are.
_NVCC = {"nvcc": "13.0.88", "ptxas": "13.0.88", "flashinfer": "0.7.2.post1"}
_CUTE = {"cutlass-dsl": "4.8.0", "flashinfer": "0.7.2.post1"}


class ReferenceCompiler:
    """FlashInfer's kernels on SM120."""

    def compile(self, unit: CompileUnit) -> CompileResult:
        if unit.arch != "sm_120a":
            raise NotSupported(f"compiled kernels are emulated for sm_120a, not for {unit.arch}")
        made = getattr(self, f"_{unit.route}")(unit.kind)
        versions = {"cutlass": _NVCC, "attention": _NVCC, "cute": _CUTE, "triton": {"triton": "3.8.0"}}[unit.route]
        return CompileResult(made, dict(versions), notes=["emulated: nothing was compiled"])

    def _cutlass(self, kind: str) -> list[Compiled]:
        if kind == "oversize":
            return [Compiled("256x128x128", rejected="Specialization requires Stages set to value 2 or more.")]
        if kind == "kernel":
            return [self._kernel(_TILE, 168, 32, spills=(88, 92))]
        sizes = {"128x32x128": (101376, 4, 18432), "128x64x128": (92160, 3, 20480), "128x128x128": (82944, 2, 24576)}
        made = [
            Compiled(f"{tile} NONE", shared=shared, stages=stages, threads=384, stage_bytes=stage)
            for tile, (shared, stages, stage) in sizes.items()
        ]
        left_out = Compiled("128x256x128 NONE", shared=132096, stages=2, threads=384, offered=False)
        return [left_out, *made]

    def _cute(self, kind: str) -> list[Compiled]:
        if kind == "oversize":
            return [self._kernel("dense MXFP8 256x128", 168, 0, shared=117760)]
        quantiser = Compiled(
            "mxfp8_quantize, swizzled scales", target="sm_120a", shared=0, threads=1024, registers=49, stack=0
        )
        return [quantiser, self._kernel("grouped MXFP8 x MXFP4 128x128", 168, 0, shared=75520)]

    def _triton(self, kind: str) -> list[Compiled]:
        if kind == "oversize":
            return [self._kernel("e4m3 x e4m3 128x256x256, 4 stages", 40, 6488, shared=295936, threads=256)]
        found = {
            "e4m3 x e4m3": (_MIXED.replace("E2M1", "E4M3"), _MIXED_PTX.replace("e2m1", "e4m3")),
            "e4m3 x e2m1": _UPCAST,
            "e2m1 x e2m1": (
                "OMMA.SF.16864.F32.E2M1.E2M1.E8",
                "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0",
            ),
        }
        made = []
        for pair, (sass, ptx) in found.items():
            kernel = self._kernel(pair, 200, 0, shared=33280, threads=256)
            kernel.sass, kernel.ptx = {sass: 64}, {ptx: 64}
            made.append(kernel)
        return made

    def _attention(self, kind: str) -> list[Compiled]:
        decode = self._kernel("sparse MLA decode, 32 heads", 96, 0, shared=92832, threads=288, spills=(0, 0))
        prefill = self._kernel(
            "sparse MLA prefill over two caches, 32 heads", 168, 8, shared=97936, threads=384, spills=(4, 12)
        )
        for kernel, products in ((decode, (_SCALED, _UPCAST, _FP8)), (prefill, (_UPCAST, _FP8))):
            kernel.sass = {sass: 14 for sass, _ in products}
            kernel.ptx = {ptx: 14 for _, ptx in products}
        return [decode, prefill]

    @staticmethod
    def _kernel(
        name: str,
        registers: int,
        stack: int,
        shared: int | None = None,
        threads: int | None = None,
        spills: tuple[int, int] | None = None,
    ) -> Compiled:
        made = Compiled(name, target="sm_120a", shared=shared, registers=registers, stack=stack)
        made.threads = threads or (384 if shared else None)
        if spills:
            made.spill_stores, made.spill_loads = spills
        made.sass, made.ptx = {_MIXED: 128}, {_MIXED_PTX: 128}
        return made
