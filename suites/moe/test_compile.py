"""The production kernels of the routed experts, compiled for a GPU that need not be there."""

from __future__ import annotations

import re

import msgspec

from conformance.context import Context
from conformance.result import Evidence, Finding
from conformance.stacks.compile.protocol import Compiled
from conformance.stacks.protocols import Stack
from conformance.suite import claim
from hardware_profiles.compiled import Baseline
from hardware_profiles.compiled import baseline as recorded
from suites.moe import compiled
from suites.moe.compiled import Target

_STAGES = 2
#: What a toolchain says of a tile that is too large. Source: CUTLASS, `Specialization requires Stages set to value 2
#: or more` and its like; CuTe and Triton speak of shared memory.
_TOO_LARGE = r"[Ss]tages|[Ss]hared ?[Mm]emory|[Ss]mem|SharedStorage|[Cc]apacity|too large"


@claim("moe.compile.tiles")
def tiles(stack: Stack, context: Context) -> Evidence:
    goal, result = compiled.target(context), compiled.made(context, "cutlass", "tiles")
    offered = [kernel for kernel in result.kernels if kernel.offered]
    findings = [finding for kernel in offered for finding in _tile(kernel, goal)]
    if not offered:
        findings.append(Finding("CUTLASS MoE", "tiles that are offered as tactics", "none"))
    most = max((kernel.shared or 0 for kernel in offered), default=0)
    good = f"{len(offered)} tiles fit {goal.arch}; the largest takes {most:,} of {goal.shared:,} bytes"
    expected = {"shared": goal.shared, "stages": _STAGES, "threads": compiled.THREADS}
    notes = [
        f"tile {kernel.name} is generated and takes {kernel.shared:,} bytes; it is left out of the tactics"
        for kernel in result.kernels
        if not kernel.offered and kernel.shared is not None
    ]
    return compiled.evidence([result], findings, good, expected, notes)


def _tile(kernel: Compiled, goal: Target) -> list[Finding]:
    where = f"tile {kernel.name}"
    if kernel.shared is None or kernel.stages is None or kernel.threads is None:
        return [Finding(where, "shared bytes, stages and threads", "not all measured")]
    found = compiled.fits(kernel, goal, where)
    if kernel.stages < _STAGES:
        found.append(Finding(where, f"{_STAGES} stages or more", f"{kernel.stages}"))
    if kernel.stage_bytes and kernel.stages * kernel.stage_bytes > kernel.shared:
        least = f"{kernel.stages} stages of at least {kernel.stage_bytes:,} bytes"
        found.append(Finding(where, f"{least} within the tile's own storage", f"{kernel.shared:,} bytes"))
    return found


@claim("moe.compile.target")
def target(stack: Stack, context: Context) -> Evidence:
    goal, result = compiled.target(context), compiled.made(context, "cutlass", "kernel")
    findings = []
    for kernel in result.kernels:
        where = f"unit {kernel.name}"
        findings += compiled.rejected(kernel, where) or compiled.for_target(kernel, goal, where)
    return compiled.evidence([result], findings, f"the unit is a binary for {goal.arch}", goal.arch, [])


@claim("moe.compile.mma")
def mma(stack: Stack, context: Context) -> Evidence:
    goal, result = compiled.target(context), compiled.made(context, "cutlass", "kernel")
    findings = []
    for kernel in result.kernels:
        where = f"unit {kernel.name}"
        findings += compiled.rejected(kernel, where) or compiled.multiplies(kernel, goal.families.cutlass, where)
    held = ", ".join(f"{count} {opcode}" for kernel in result.kernels for opcode, count in kernel.sass.items())
    return compiled.evidence([result], findings, f"all products are {held}", goal.families.cutlass.sass, [])


@claim("moe.compile.baseline")
def baseline(stack: Stack, context: Context) -> Evidence:
    """With another toolchain than the recorded ones only hard limits of a block are compared, and that is said."""
    goal = compiled.target(context)
    unit, probed = compiled.made(context, "cutlass", "kernel"), compiled.made(context, "cutlass", "tiles")
    threads = {kernel.name: kernel.threads for kernel in probed.kernels}
    findings, notes, known = list[Finding](), list[str](), list[Baseline]()
    for kernel in unit.kernels:
        where = f"unit {kernel.name}"
        kernel = msgspec.structs.replace(kernel, threads=kernel.threads or threads.get(kernel.name))
        record = recorded("cutlass", goal.arch, kernel.name, unit.toolchain)
        findings += compiled.rejected(kernel, where) or compiled.fits(kernel, goal, where)
        if record is None:
            notes.append(
                f"{compiled.unrecorded('cutlass', goal.arch, kernel.name, unit.toolchain)}: only the limits of a block "
                "were compared, neither stack nor spills"
            )
            continue
        known.append(record)
        findings += compiled.above(kernel, record, where)
    good = "; ".join(compiled.taken(kernel) for kernel in unit.kernels)
    return compiled.evidence([unit, probed], findings, good, [record._asdict() for record in known], notes)


@claim("moe.compile.oversize")
def oversize(stack: Stack, context: Context) -> Evidence:
    goal = compiled.target(context)
    results = [compiled.made(context, "cutlass", "oversize"), compiled.made(context, "triton", "oversize")]
    if goal.families.cute is not None:
        results.insert(1, compiled.made(context, "cute", "oversize"))
    findings, notes = list[Finding](), list[str]()
    for result in results:
        for kernel in result.kernels:
            findings += _let_through(kernel, goal)
            if not kernel.rejected:
                notes.append(f"{kernel.name}: its toolchain says nothing; rejected here for {kernel.shared} bytes")
    good = f"{sum(len(result.kernels) for result in results)} oversize tiles are rejected"
    return compiled.evidence(results, findings, good, {"shared": goal.shared}, notes)


def _let_through(kernel: Compiled, goal: Target) -> list[Finding]:
    where = f"oversize tile {kernel.name}"
    if not kernel.rejected:
        if any("shared memory" in finding.got for finding in compiled.fits(kernel, goal, where)):
            return []
        got = "no measured size" if kernel.shared is None else f"{kernel.shared:,} bytes of shared memory"
        return [Finding(where, f"more than {goal.shared:,} bytes, and so rejected here", got)]
    if re.search(_TOO_LARGE, kernel.rejected):
        return []
    return [Finding(where, "rejected for its size", kernel.rejected, "the negative control proves nothing")]


@claim("moe.compile.cute")
def cute(stack: Stack, context: Context) -> Evidence:
    goal, result = compiled.target(context), compiled.made(context, "cute", "kernel")
    family = goal.families.cute
    findings, notes = list[Finding](), list[str]()
    for kernel in result.kernels:
        where = f"kernel {kernel.name}"
        findings += compiled.for_target(kernel, goal, where) + compiled.fits(kernel, goal, where)
        if kernel.shared is None or kernel.threads is None:
            findings.append(Finding(where, "shared bytes and threads of the launch", "not measured"))
        if "quantize" not in kernel.name and family is not None:
            findings += compiled.multiplies(kernel, family, where)
        record = recorded("cute", goal.arch, kernel.name, result.toolchain)
        if record is not None:
            findings += compiled.above(kernel, record, where)
        else:
            notes.append(f"no baseline of {kernel.name} on {goal.arch} for this toolchain")
    most = max((kernel.shared or 0 for kernel in result.kernels), default=0)
    good = f"{len(result.kernels)} kernels fit {goal.arch}; the largest takes {most:,} of {goal.shared:,} bytes"
    return compiled.evidence([result], findings, good, {"shared": goal.shared}, notes)


@claim("moe.compile.triton")
def triton(stack: Stack, context: Context) -> Evidence:
    goal, result = compiled.target(context), compiled.made(context, "triton", "kernel")
    findings, notes = list[Finding](), list[str]()
    for kernel in result.kernels:
        where = f"dot_scaled {kernel.name}"
        findings += compiled.for_target(kernel, goal, where) + compiled.fits(kernel, goal, where)
        wrong = compiled.multiplies(kernel, goal.families.triton[kernel.name], where)
        upcast = goal.families.upcast.get(kernel.name)
        if wrong and upcast is not None and not compiled.multiplies(kernel, upcast, where):
            notes.append(
                f"{kernel.name} on {goal.arch} is upcast in software and multiplied in BF16: such a kernel is "
                "no evidence about the target's own mixed product"
            )
            wrong = []
        findings += wrong
    held = "; ".join(f"{kernel.name}: {', '.join(kernel.sass)}" for kernel in result.kernels)
    return compiled.evidence([result], findings, held, {p: f.sass for p, f in goal.families.triton.items()}, notes)
