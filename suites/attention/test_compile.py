"""The production kernels of sparse MLA attention, compiled for a GPU that need not be there."""

from __future__ import annotations

import re

from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.compile.protocol import Compiled, CompileResult, CompileUnit
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from hardware_profiles.compiled import Attention, Baseline
from hardware_profiles.compiled import baseline as recorded
from suites.moe import compiled


def _made(context: Context) -> tuple[compiled.Target, CompileResult]:
    """Compiled once a run."""
    goal = compiled.target(context)
    unit = CompileUnit("attention", "kernel", goal.arch, "fp8")
    result: CompileResult = context.once(f"compiled {unit}", lambda: context.compiler.compile(unit))
    return goal, result


def _where(kernel: Compiled) -> str:
    return f"kernel {kernel.name}"


@claim("attention.compile.target")
def target(stack: Stack, context: Context) -> Evidence:
    goal, result = _made(context)
    findings = [
        finding
        for kernel in result.kernels
        for finding in compiled.rejected(kernel, _where(kernel)) or compiled.for_target(kernel, goal, _where(kernel))
    ]
    good = f"{len(result.kernels)} kernels are binaries for {goal.arch}"
    return compiled.evidence([result], findings, good, goal.arch, [])


@claim("attention.compile.mma")
def mma(stack: Stack, context: Context) -> Evidence:
    """Each product is one that the kernels are known to hold, and each kernel multiplies values of the cache in FP8."""
    goal, result = _made(context)
    known = goal.families.attention
    if known is None:
        raise NotSupported(f"no products of attention kernels are known for {goal.arch}")
    findings = list[Finding]()
    for kernel in result.kernels:
        where = _where(kernel)
        findings += compiled.rejected(kernel, where) or compiled.multiplies(kernel, known.all, where)
        findings += _in_fp8(kernel, known, where)
    held = "; ".join(f"{kernel.name}: {_counted(kernel)}" for kernel in result.kernels)
    return compiled.evidence([result], findings, held, known.all.sass, [])


def _in_fp8(kernel: Compiled, known: Attention, where: str) -> list[Finding]:
    if kernel.rejected or any(re.fullmatch(known.cached, opcode) for opcode in kernel.sass):
        return []
    meaning = "what the cache holds is upcast and multiplied in BF16"
    return [Finding(where, f"products {known.cached} among them", _counted(kernel) or "none", meaning)]


def _counted(kernel: Compiled) -> str:
    return ", ".join(f"{count} {opcode}" for opcode, count in kernel.sass.items())


@claim("attention.compile.block")
def block(stack: Stack, context: Context) -> Evidence:
    goal, result = _made(context)
    findings = list[Finding]()
    for kernel in result.kernels:
        where = _where(kernel)
        findings += compiled.rejected(kernel, where) or compiled.fits(kernel, goal, where)
        if not kernel.rejected and (kernel.shared is None or kernel.threads is None):
            findings.append(Finding(where, "shared bytes and threads of the launch", "not measured"))
    most = max((kernel.shared or 0 for kernel in result.kernels), default=0)
    good = f"{len(result.kernels)} kernels fit {goal.arch}; the largest takes {most:,} of {goal.shared:,} bytes"
    return compiled.evidence([result], findings, good, {"shared": goal.shared, "threads": compiled.THREADS}, [])


@claim("attention.compile.baseline")
def baseline(stack: Stack, context: Context) -> Evidence:
    """With a toolchain that no record is of, there is nothing to compare with: not supported, and said."""
    goal, result = _made(context)
    findings, known = list[Finding](), list[Baseline]()
    for kernel in result.kernels:
        where = _where(kernel)
        record = recorded("attention", goal.arch, kernel.name, result.toolchain)
        if record is None:
            raise NotSupported(compiled.unrecorded("attention", goal.arch, kernel.name, result.toolchain))
        known.append(record)
        findings += compiled.rejected(kernel, where) or compiled.above(kernel, record, where)
    good = "; ".join(compiled.taken(kernel) for kernel in result.kernels)
    return compiled.evidence([result], findings, good, [record._asdict() for record in known], [])
