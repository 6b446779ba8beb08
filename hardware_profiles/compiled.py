"""What compiled kernels of a target are held to: MMA families and, for pinned toolchains, recorded resources."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_FOLDER = Path(__file__).with_name("compile")


class Family(NamedTuple):
    """Regular expressions for whole instructions."""

    sass: str
    ptx: str


class Attention(NamedTuple):
    """`all`: every product of an attention kernel; `cached`: in SASS, those of values that the cache holds in FP8."""

    all: Family
    cached: str


class Families(NamedTuple):
    """By route, and for Triton by operand pair. `upcast`: pairs known to be multiplied in BF16 instead. `attention`:
    None where attention kernels come as binaries alone."""

    cutlass: Family
    cute: Family | None
    triton: dict[str, Family]
    upcast: dict[str, Family]
    attention: Attention | None


class Baseline(NamedTuple):
    """What one kernel took with exactly this toolchain. Bytes of a thread for stack and spills."""

    route: str
    arch: str
    kernel: str
    toolchain: dict[str, str]
    registers: int
    stack: int
    spill_stores: int | None = None
    spill_loads: int | None = None


def arch(capability: tuple[int, int]) -> str:
    """(12, 0) -> `sm_120a`: the architecture-specific target, which block-scaled products need."""
    return f"sm_{capability[0]}{capability[1]}a"


@cache
def families(target: str) -> Families | None:
    """None for a target that no file knows."""
    data: dict[str, Any] = tomllib.loads((_FOLDER / "targets.toml").read_text())
    found = data.get(target)
    if found and "same_as" in found:
        found = data[found["same_as"]]
    if found is None:
        return None
    return Families(
        _family(found["cutlass"]),
        _family(found["cute"]) if "cute" in found else None,
        {pair: _family(entry) for pair, entry in found["triton"].items()},
        {pair: _family(entry) for pair, entry in found.get("upcast", {}).items()},
        Attention(_family(found["attention"]), found["attention"]["cached"]) if "attention" in found else None,
    )


@cache
def baselines() -> tuple[Baseline, ...]:
    data = tomllib.loads((_FOLDER / "baselines.toml").read_text())
    return tuple(Baseline(**entry) for entry in data["baseline"])


def baseline(route: str, target: str, kernel: str, toolchain: dict[str, str]) -> Baseline | None:
    """The record of exactly this toolchain, each of its versions: numbers of another say nothing."""
    return next(
        (
            b
            for b in baselines()
            if (b.route, b.arch, b.kernel) == (route, target, kernel) and b.toolchain.items() <= toolchain.items()
        ),
        None,
    )


def _family(entry: dict[str, str]) -> Family:
    return Family(entry["sass"], entry["ptx"])
