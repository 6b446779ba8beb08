"""How a compiled kernel is judged: what it is for, what it takes of a block's means, what it multiplies with."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

import hardware_profiles
from conformance.context import Context
from conformance.errors import NotSupported
from conformance.result import Evidence, Finding
from conformance.stacks.compile.protocol import Compiled, CompileResult, CompileUnit, Kind, Route
from hardware_profiles.compiled import Baseline, Families, Family, arch, baselines, families

#: Of one block, on every target here. Source: CUDA C++ Programming Guide, `Compute Capabilities`.
REGISTERS, THREADS = 65536, 1024
#: A thread's registers are given out in eights. Source: as above.
_REGISTER_STEP = 8
_MOST = 12


class Target(NamedTuple):
    """`shared`: bytes of dynamic shared memory that a block may have."""

    arch: str
    shared: int
    families: Families


def target(context: Context) -> Target:
    """Raises NotSupported for a capability that no profile or no file of MMA families knows."""
    capability = context.target.capability
    assert capability is not None
    profile = hardware_profiles.for_capability(capability)
    known = families(arch(capability))
    if profile is None or known is None:
        raise NotSupported(f"no profile or MMA family is known for capability {capability[0]}.{capability[1]}")
    return Target(arch(capability), hardware_profiles.load(profile).shared_memory, known)


def made(context: Context, route: Route, kind: Kind) -> CompileResult:
    """Compiled once a run, whichever claims look at it."""
    scheme = "bf16" if context.target.arithmetic == "bf16" else "mxfp8"
    unit = CompileUnit(route, kind, target(context).arch, scheme)  # type: ignore[arg-type]
    result: CompileResult = context.once(f"compiled {unit}", lambda: context.compiler.compile(unit))
    return result


def rejected(kernel: Compiled, where: str) -> list[Finding]:
    """A production kernel that its own toolchain refuses."""
    return [Finding(where, "a kernel", f"refused: {kernel.rejected}")] if kernel.rejected else []


def for_target(kernel: Compiled, goal: Target, where: str) -> list[Finding]:
    if kernel.target == goal.arch:
        return []
    return [Finding(where, f"a binary for {goal.arch}", kernel.target or "no binary")]


def fits(kernel: Compiled, goal: Target, where: str) -> list[Finding]:
    """Ours, whatever the toolchain says: shared memory, threads and registers of a block."""
    found = []
    if kernel.shared is not None and kernel.shared > goal.shared:
        more = f"{kernel.shared:,} bytes of shared memory"
        meaning = "the launch fails on the device"
        found.append(Finding(where, f"at most {goal.shared:,} bytes of shared memory", more, meaning))
    if kernel.threads is not None and not 0 < kernel.threads <= THREADS:
        found.append(Finding(where, f"1 to {THREADS} threads", f"{kernel.threads} threads"))
    if kernel.registers and kernel.threads:
        taken = -(-kernel.registers // _REGISTER_STEP) * _REGISTER_STEP * kernel.threads
        if taken > REGISTERS:
            got = f"{kernel.registers} x {kernel.threads} threads"
            found.append(Finding(where, f"at most {REGISTERS:,} registers", got))
    return found


def multiplies(kernel: Compiled, family: Family, where: str) -> list[Finding]:
    """Every product is of the family, in SASS and where PTX is kept there too, and there is one."""
    if not kernel.sass:
        return [Finding(where, f"products of the family {family.sass}", "no matrix-multiply instruction")]
    found = []
    for held, pattern in ((kernel.sass, family.sass), (kernel.ptx, family.ptx)):
        for opcode, count in held.items():
            if not re.fullmatch(pattern, _plain(opcode)):
                found.append(Finding(where, f"products of the family {pattern}", f"{count} {opcode}"))
    return found


def _plain(opcode: str) -> str:
    """PTX tools write a shape before or after the kind; trailing dots are none of the name."""
    return opcode.rstrip(".:")


def above(kernel: Compiled, record: Baseline, where: str) -> list[Finding]:
    """More registers, stack or spills than recorded."""
    found = []
    for name in ("registers", "stack", "spill_stores", "spill_loads"):
        due, got = getattr(record, name), getattr(kernel, name)
        if due is not None and (got is None or got > due):
            found.append(Finding(where, f"{name.replace('_', ' ')} of at most {due}, as recorded", f"{got}"))
    return found


def taken(kernel: Compiled) -> str:
    spills = "" if kernel.spill_stores is None else f", spills {kernel.spill_stores}/{kernel.spill_loads} bytes"
    return f"{kernel.name}: {kernel.registers} registers, stack {kernel.stack} bytes{spills}"


def unrecorded(route: str, arch: str, kernel: str, toolchain: dict[str, str]) -> str:
    """Which toolchain has no record, and which have."""
    known = dict.fromkeys(
        _versions(b.toolchain) for b in baselines() if (b.route, b.arch, b.kernel) == (route, arch, kernel)
    )
    return (
        f"no baseline of {kernel} on {arch} for this toolchain ({_versions(toolchain)}); recorded: "
        f"{'; '.join(known) or 'none'}"
    )


def _versions(toolchain: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in toolchain.items())


def evidence(
    results: list[CompileResult], findings: list[Finding], good: str, expected: Any, notes: list[str]
) -> Evidence:
    first = findings[0] if findings else None
    kernels = [kernel for result in results for kernel in result.kernels]
    return Evidence(
        ok=first is None and bool(kernels),
        summary=(f"{first.where}: {first.got}; {first.expected} due" if first else good),
        expected=expected,
        measured={
            "kernels": msgspec.to_builtins(kernels),
            "toolchains": [result.toolchain for result in results],
            "seconds": [result.seconds for result in results],
            "megabytes": [result.megabytes for result in results],
        },
        findings=findings[:_MOST],
        notes=[*notes, *_told(results)],
        method="compiled for the target; nothing was launched, and no number was computed",
    )


def _told(results: list[CompileResult]) -> list[str]:
    told = [note for result in results for note in result.notes]
    for result in results:
        words = ", ".join(f"{name} {version}" for name, version in result.toolchain.items())
        kept = ", from the cache" if result.cached else ""
        told.append(f"toolchain: {words}; {result.seconds:g} s, {result.megabytes} MB{kept}")
    return list(dict.fromkeys(told))
