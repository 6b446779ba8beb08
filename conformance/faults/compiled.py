"""Faults of compiled kernels: another target, another product, more of a block's or thread's means than there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from conformance.faults.kernel import MoeFault
from conformance.stacks.compile.protocol import Compiled

if TYPE_CHECKING:
    from conformance.stacks.compile.protocol import Compiler, CompileResult, CompileUnit

_UPCAST = "HMMA.16816.F32.BF16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


class FaultyCompiler:
    def __init__(self, inner: Compiler, fault: Callable[[CompileUnit, CompileResult], None]):
        self._inner, self._fault = inner, fault

    def compile(self, unit: CompileUnit) -> CompileResult:
        result = self._inner.compile(unit)
        self._fault(unit, result)
        return result


def _one_stage_more(unit: CompileUnit, result: CompileResult) -> None:
    """The last production tile, with a stage more than its storage has room for."""
    kernel = result.kernels[-1]
    if unit.kind == "tiles" and kernel.shared and kernel.stages:
        kernel.shared += 2 * kernel.shared // kernel.stages
        kernel.stages += 2


def _stages_uncounted(unit: CompileUnit, result: CompileResult) -> None:
    """Twice the stages in the same bytes: the storage that was measured is not the kernel's."""
    kernel = result.kernels[-1]
    if unit.kind == "tiles" and kernel.stages:
        kernel.stages *= 2


def _single_stage(unit: CompileUnit, result: CompileResult) -> None:
    if unit.kind == "tiles":
        result.kernels[-1].stages = 1


def _filter_lost(unit: CompileUnit, result: CompileResult) -> None:
    """Tiles that are generated though they do not fit are offered as tactics: those that there are, and SM90's."""
    if unit.kind == "tiles":
        for kernel in result.kernels:
            kernel.offered = True
        result.kernels.append(Compiled("128x128x512 cooperative", shared=366592, stages=2, threads=384))


def _oversize_taken(unit: CompileUnit, result: CompileResult) -> None:
    """The toolchain lets the oversize tile through, and what is measured of it seems to fit."""
    if unit.kind == "oversize":
        for kernel in result.kernels:
            kernel.rejected, kernel.shared, kernel.target = "", 65536, unit.arch


def _refused_for_else(unit: CompileUnit, result: CompileResult) -> None:
    """The negative control fails for a reason that has nothing to do with its size."""
    if unit.kind == "oversize" and unit.route == "cutlass":
        result.kernels[0].rejected = "identifier 'SafeFP4' is undefined"


def _silent_oversize(unit: CompileUnit, result: CompileResult) -> None:
    """A production kernel that takes more than the target has; its toolchain says nothing."""
    if unit.kind == "kernel" and unit.route == "cute":
        result.kernels[-1].shared = 240_000


def _refused(unit: CompileUnit, result: CompileResult) -> None:
    if unit.kind == "kernel" and unit.route == "cutlass":
        result.kernels[:] = [
            Compiled(kernel.name, rejected="no instance of the overloaded function") for kernel in result.kernels
        ]


def _other_target(unit: CompileUnit, result: CompileResult) -> None:
    if unit.kind == "kernel":
        for kernel in result.kernels:
            kernel.target = "sm_90a" if unit.arch != "sm_90a" else "sm_120a"


def _upcast(unit: CompileUnit, result: CompileResult) -> None:
    """One product in four is a BF16 one, after an upcast in software."""
    if unit.kind == "kernel":
        kernel = max(result.kernels, key=lambda one: len(one.sass))
        kernel.sass[_UPCAST[0]], kernel.ptx[_UPCAST[1]] = 32, 32


def _no_product(unit: CompileUnit, result: CompileResult) -> None:
    """The kernel's body was pruned: it compiles, and multiplies nothing."""
    if unit.kind == "kernel":
        for kernel in result.kernels:
            kernel.sass, kernel.ptx = {}, {}


def _cache_upcast(unit: CompileUnit, result: CompileResult) -> None:
    """What the cache holds in FP8 is multiplied in BF16, in prefill."""
    if unit.route == "attention":
        kernel = result.kernels[-1]
        kernel.sass, kernel.ptx = {_UPCAST[0]: 100}, {_UPCAST[1]: 100}


def _attention_refused(unit: CompileUnit, result: CompileResult) -> None:
    if unit.route == "attention":
        result.kernels[0] = Compiled(result.kernels[0].name, rejected="no instance of the overloaded function")


def _attention_oversize(unit: CompileUnit, result: CompileResult) -> None:
    """The launch asks for more shared memory than the target has; nvcc says nothing, since it is dynamic."""
    if unit.route == "attention":
        result.kernels[-1].shared = 115_000


def _more_spills(unit: CompileUnit, result: CompileResult) -> None:
    kernel = result.kernels[0]
    if unit.kind == "kernel" and kernel.spill_stores is not None:
        kernel.spill_stores += 8


def _registers(unit: CompileUnit, result: CompileResult) -> None:
    """More registers than 384 threads can have of 65,536."""
    kernel = result.kernels[0]
    if unit.kind == "kernel":
        kernel.registers = 184


one_stage_more = MoeFault(compiled=_one_stage_more)
stages_uncounted = MoeFault(compiled=_stages_uncounted)
single_stage = MoeFault(compiled=_single_stage)
filter_lost = MoeFault(compiled=_filter_lost)
refused = MoeFault(compiled=_refused)
oversize_taken = MoeFault(compiled=_oversize_taken)
refused_for_else = MoeFault(compiled=_refused_for_else)
silent_oversize = MoeFault(compiled=_silent_oversize)
other_target = MoeFault(compiled=_other_target)
upcast = MoeFault(compiled=_upcast)
no_product = MoeFault(compiled=_no_product)
cache_upcast = MoeFault(compiled=_cache_upcast)
attention_refused = MoeFault(compiled=_attention_refused)
attention_oversize = MoeFault(compiled=_attention_oversize)
more_spills = MoeFault(compiled=_more_spills)
registers = MoeFault(compiled=_registers)
