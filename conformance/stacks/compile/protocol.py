"""Compiling for a GPU that is not there: what is asked for, what came out, and what measures it.

Nothing here runs on a device. A result says that source compiles for a target, what it needs there and which
matrix-multiply instructions it holds; it says nothing about launches, numbers or speed.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

Route = Literal["cutlass", "cute", "triton", "attention"]
#: `tiles`: resources of every production tile, from the compiler's front end alone; `kernel`: cubins of production
#: kernels; `oversize`: tiles made too large for the target on purpose.
Kind = Literal["tiles", "kernel", "oversize"]


class CompileUnit(msgspec.Struct, frozen=True):
    """What is compiled. `arch` is the exact target (`sm_120a`), `scheme` what meets the MXFP4 weights there, and for
    attention what the cache holds (`fp8`)."""

    route: Route
    kind: Kind
    arch: str
    scheme: Literal["bf16", "mxfp8", "fp8"]


class Compiled(msgspec.Struct, omit_defaults=True):
    """One kernel. Bytes are a block's (`shared`: dynamic, at launch) or a thread's (stack, spills); None: not measured.

    `rejected` holds the toolchain's words where it made no kernel; `target` is what the cubin's own header says.
    `sass` and `ptx` count matrix-multiply instructions by opcode with all its modifiers.
    """

    name: str
    rejected: str = ""
    target: str = ""
    shared: int | None = None
    stages: int | None = None
    threads: int | None = None
    registers: int | None = None
    stack: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    sass: dict[str, int] = {}
    ptx: dict[str, int] = {}
    #: The least bytes that one pipeline stage holds: both operands' packed tiles.
    stage_bytes: int | None = None
    #: Does the library offer it to its autotuner? A tile that is generated and never offered need not fit.
    offered: bool = True


class CompileResult(msgspec.Struct):
    """All kernels of a unit, and the pinned toolchain that made them. `seconds` and `megabytes` (peak of one process)
    are of the compilation itself, whenever it was; `cached`: it was not repeated for this answer."""

    kernels: list[Compiled]
    toolchain: dict[str, str]
    seconds: float = 0.0
    megabytes: int = 0
    cached: bool = False
    notes: list[str] = []


class Compiler(Protocol):
    """A stack may offer one as `compiler()`: the production kernels' own sources through their own toolchains."""

    def compile(self, unit: CompileUnit) -> CompileResult:
        """Raises StackMissing where a toolchain is not installed (with what to install), NotSupported for a target
        that the stack's sources do not name, AdapterError where sources are not as this harness knows them."""
